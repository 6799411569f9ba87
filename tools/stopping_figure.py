"""Draw docs/images/stopping.png: false alarms of repeated t-tests and of the e-value, by simulation.

python tools/stopping_figure.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import stats

from gradcent_lab.analysis.sequential import FEWEST_PAIRS, MOST_PAIRS, PRIOR
from gradcent_lab.report.figures.style import MUTED, WITH, WITHOUT, new_figure, styled

STUDIES = 20_000


def shares(effect: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of studies that have reported an effect after n pairs, by each rule."""
    values = np.random.default_rng(0).normal(effect, 1, (STUDIES, MOST_PAIRS))
    by_t, by_e = np.zeros(STUDIES, bool), np.zeros(STUDIES, bool)
    rows = []
    for n in range(FEWEST_PAIRS, MOST_PAIRS + 1):
        mean, variance = values[:, :n].mean(1), values[:, :n].var(1, ddof=1)
        squared = n * mean**2 / variance
        ratio, scaled = PRIOR / (PRIOR + n), squared / (n - 1)
        log_e = 0.5 * np.log(ratio) + n / 2 * (np.log1p(scaled) - np.log1p(ratio * scaled))
        by_t |= 2 * stats.t.sf(np.sqrt(squared), n - 1) < 0.05
        by_e |= log_e >= np.log(20)
        rows.append((by_t.mean(), by_e.mean()))
    return tuple(np.array(rows).T)  # type: ignore[return-value]


@styled
def draw(path: Path) -> None:
    """Draw no effect on the left, an effect of 1.5 standard deviations on the right."""
    figure, axes = new_figure(8.4, 3.2, 1, 2)
    pairs = np.arange(FEWEST_PAIRS, MOST_PAIRS + 1)
    titles = {0.0: "GC does nothing: false alarms", 1.5: "A real effect (1.5 std): found"}
    for axis, (effect, title) in zip(axes, titles.items(), strict=True):
        by_t, by_e = shares(effect)
        axis.plot(pairs, 100 * by_t, color=WITHOUT, lw=2, label="t-test after every pair, until p < 0.05")
        axis.plot(pairs, 100 * by_e, color=WITH, lw=2, label="e-value after every pair, until E ≥ 20")
        axis.set_title(title)
        axis.set_xlabel("pairs so far")
        axis.set_xticks(range(4, MOST_PAIRS + 1, 4))
        axis.set_ylabel("studies that report an effect, %")
        print(
            f"{title}: after {MOST_PAIRS} pairs {100 * by_t[-1]:.1f} % by t-tests, {100 * by_e[-1]:.1f} % by e-value"
        )
    axes[0].axhline(5, color=MUTED, lw=1, ls="--")
    axes[0].set_ylim(0, 30)
    axes[0].legend(loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": "gradcent"})


if __name__ == "__main__":
    draw(Path(__file__).resolve().parents[1] / "docs/images/stopping.png")
