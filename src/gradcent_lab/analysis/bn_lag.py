"""BatchNorm lag: does a difference between the arms vanish when BatchNorm statistics are re-estimated?

The last epoch of every run whose model has BatchNorm is evaluated twice on the same weights: with running and with
re-estimated statistics. A difference that only one of them shows belongs to the statistics, not to the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradcent_lab.analysis.statistics import Comparison, compare
from gradcent_lab.store.records import RunRecord

CONTROL = "eval_metric_bn_control"


def control_comparison(without: Sequence[RunRecord], with_: Sequence[RunRecord]) -> Comparison | None:
    """Compare the arms by the control evaluation of the last epoch; None where a run has none."""
    values = [
        [run.curves[-1].get(CONTROL) if run.curves else None for run in arm] for arm in (without, with_)
    ]
    plain = [[float(v) for v in arm if v is not None and math.isfinite(v)] for arm in values]
    if not without or len(plain[0]) != len(without) or len(plain[1]) != len(with_):
        return None
    return compare(plain[0], plain[1], without[0].higher_is_better)


def lags(judged: Comparison, control: Comparison, margin: float) -> bool:
    """Whether the judged difference belongs to BatchNorm statistics.

    It does where it matters (shown, or larger than the margin), the control's is less than half of it or of the
    other sign, and the two differ by more than the margin.
    """
    matters = judged.shown or abs(judged.difference) > margin
    remains = control.difference / judged.difference if judged.difference else 1.0
    return matters and remains < 0.5 and abs(judged.difference - control.difference) > margin
