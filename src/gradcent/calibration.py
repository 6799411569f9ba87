"""What a share of removed gradient was worth on the calibration tasks: the sentence of a forecast.

The points below are generated from results/forecast by `python tools/pages.py`; a test fails when they are stale. One
point is one small task: the share of the gradient's energy that GC removes in the first steps without GC, and the
change of the mean training loss with GC, both arms tuned over the same learning rates.
"""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """One calibration task."""

    removed: float  # share of the gradient's energy that GC removes
    change: float  # of the mean training loss with GC in all layers: -0.3 is 30 % lower
    change_hidden: float  # the same with GC in the hidden layers only
    explained: float | None  # share of the target that the mean of the input explains
    slower: bool  # noticeably slower, and not by chance


NOTICEABLE = 0.05  # a change of the loss by less is called no change
RANGES = ((0.0, 0.05), (0.05, 0.20), (0.20, 0.40), (0.40, 1.0))

# begin generated
WARNING_THRESHOLD = 0.5
POINTS: tuple[Point, ...] = ()
# end generated


def sentence(removed: float, explained: float | None = None) -> str:
    """Return what the calibration says about a share of removed gradient, in plain words."""
    if not 0 <= removed <= 1 + 1e-6:
        raise ValueError(f"removed is a share between 0 and 1, got {removed}")
    low, high = next((low, high) for low, high in reversed(RANGES) if removed >= low)
    points = [point for point in POINTS if low <= point.removed and (point.removed < high or high == 1.0)]
    parts = [f"GC removes {_percent(removed)} of the gradient here."]
    if len(points) < 3:
        parts.append("Too few calibration tasks are like that to say what follows.")
    else:
        faster = sum(point.change < -NOTICEABLE for point in points)
        slower = sum(point.slower for point in points)
        changes = sorted(point.change for point in points)
        parts.append(
            f"Of {len(points)} calibration tasks between {_percent(low)} and {_percent(high)}, {faster} trained faster "
            f"with GC, {len(points) - faster - slower} about equally, {slower} slower "
            f"(change of the training loss {_signed(changes[0])} to {_signed(changes[-1])})."
        )
    if explained is not None and explained >= WARNING_THRESHOLD:
        parts.append(
            f"The mean of the input explains {_percent(explained)} of the target: GC in the input layer can hurt here. "
            'Try layers="hidden" first.'
        )
    return " ".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _signed(change: float) -> str:
    return f"{100 * change:+.0f} %".replace("-", "\N{MINUS SIGN}")
