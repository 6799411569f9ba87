"""The blocks of the pages on the forecast: the calibration, other models, and shares by architecture.

python tools/forecast_pages.py     draws results/studies/forecast.png; tools/pages.py fills the blocks
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


@cache
def _records() -> list[Any]:
    from gradcent_lab.store import records

    return [record for record in records.load(RESULTS / "studies") if record.study == "forecast"]


def check() -> str:
    """What was fixed on the first half of the families, and what the second half says about it."""
    from gradcent_lab.forecasting.calibration import outcomes
    from gradcent_lab.recipes.presentation.calibration import check_table, read_outcomes

    facts = outcomes.check(read_outcomes(_records()))
    lines = [_plain(check_table(facts).markdown()), ""]
    lists = {
        "Promised faster, was slower": facts["false_promises"],
        "Harmed without a warning": facts["missed_harms"],
        "Warned without harm": facts["false_warnings"],
        "Outside the predicted range": facts["uncovered"],
    }
    lines += [f"- {title}: {'; '.join(names) if names else 'none'}." for title, names in lists.items()]
    return "\n".join(lines)


def tasks() -> str:
    """Every task of the calibration."""
    from gradcent_lab.recipes.presentation.calibration import tables

    return _plain(tables(_records())[-1].markdown())


def expectations() -> str:
    """What theory expected of the tasks, and what happened."""
    from gradcent_lab.recipes.presentation.calibration import read_outcomes

    found = read_outcomes(_records())
    titles = {
        "nothing": "most inputs are centered: GC should do nothing",
        "harm": "the target depends on the input mean: GC should hurt",
        "open": "the others",
    }
    lines = [
        "| tasks | number | median share removed | faster | about equal | slower | harmed | harmed, hidden layers only |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for expected, title in titles.items():
        chosen = [entry for entry in found if entry.task.expected == expected]
        faster = sum(entry.train["all"].faster for entry in chosen)
        slower = sum(entry.train["all"].slower for entry in chosen)
        removed = sorted(entry.removed for entry in chosen)[len(chosen) // 2]
        lines.append(
            f"| {title} | {len(chosen)} | {100 * removed:.0f} % | {faster} | {len(chosen) - faster - slower} | {slower} | "
            f"{sum(entry.harmed for entry in chosen)} | {sum(entry.harmed_hidden for entry in chosen)} |"
        )
    return "\n".join(lines)


def sentences() -> str:
    """The sentence of every range."""
    from gradcent import calibration

    lines = []
    for low, high in zip(calibration.EDGES, calibration.EDGES[1:], strict=False):
        text = calibration.sentence((low + high) / 2).split(" here. ", 1)[1]
        lines.append(f"- {text.split('). ', 1)[0]}).")
    hints = [calibration.sentence(0.0, explained) for explained in (0.0, 1.0)]
    lines.append(f"- Without a hint about the target: {hints[0].split('). ', 1)[1]}")
    lines.append(f"- With it: {hints[1].split('). ', 1)[1]}")
    return "\n".join(lines)


def outside() -> str:
    """The models that are not in the calibration."""
    from gradcent import calibration

    lines = [
        "| model | removed, % | target from input mean | tasks in that range: change of the training loss | its change, % [95 %] | hidden layers only | test loss | inside the range |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in _lines("forecast_outside.jsonl"):
        edges = calibration.range_of(line["removed"])
        changes = [p.change for p in calibration.POINTS if calibration.range_of(p.removed) == edges]
        inside = (
            min(changes) - calibration.NOTICEABLE
            <= line["train_all"][0]
            <= max(changes) + calibration.NOTICEABLE
        )
        explained = line["explained"]
        hint = explained is not None and explained >= calibration.HINT
        mean = "–" if explained is None else f"{explained:.2f}" + (" (hint)" if hint else "")
        lines.append(
            f"| {line['name']} | {100 * line['removed']:.0f} | {mean} | {_signed(min(changes))} to {_signed(max(changes))} % | "
            f"{_change(line['train_all'])} | {_change(line['train_hidden'])} | {_change(line['test_all'])} | "
            f"{'yes' if inside else 'no'} |"
        )
    return "\n".join(lines)


def architectures() -> str:
    """The share removed in ten steps, by architecture."""
    lines = [
        "| architecture | normalization | share removed | level of the image at the first layer | median level at the hidden layers |",
        "|---|---|---|---|---|",
    ]
    for line in sorted(_lines("architecture_shares.jsonl"), key=lambda line: -line["removed"]):
        cells = [
            "–" if line[key] is None else f"{100 * line[key]:.0f} %"
            for key in ("removed", "input_level", "median_hidden_level")
        ]
        lines.append(f"| {line['name']} | {line['norm']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _change(values: list[float]) -> str:
    center, low, high = (_signed(value) for value in values)
    return f"{center} [{low}, {high}]"


def _signed(share: float) -> str:
    rounded = round(100 * share)
    return f"{rounded:+d}".replace("-", "−") if rounded else "0"


def _plain(markdown: str) -> str:
    """Return a table without its title."""
    return markdown[markdown.index("|") :].strip()


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


BLOCKS: dict[str, Callable[[], str]] = {
    "forecast-check": check,
    "forecast-tasks": tasks,
    "forecast-expectations": expectations,
    "forecast-sentences": sentences,
    "forecast-outside": outside,
    "architecture-shares": architectures,
}


def draw() -> None:
    """Draw forecast against outcome."""
    from gradcent_lab.recipes.presentation.calibration import figures

    (picture,) = figures(_records(), "")
    picture.figure.savefig(RESULTS / "studies" / "forecast.png", metadata={"Software": "gradcent"})


if __name__ == "__main__":
    draw()
