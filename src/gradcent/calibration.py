"""What a share of removed gradient was worth on the calibration tasks: the sentence of a forecast.

The table below is generated from results/studies/forecast by `python tools/pages.py`; a test fails when it is stale.
One point is one small task: the share of the gradient's energy that GC removes in the first 60 steps without GC, and
the change of the mean training loss with GC, both arms tuned over the same learning rates.
"""

from __future__ import annotations

from typing import NamedTuple


class Point(NamedTuple):
    """One calibration task.

    A task is `faster` or `slower` if its training loss changes by more than `NOTICEABLE` and the 95 % interval over
    its seeds excludes zero. It is `harmed` if it is slower or its test loss is noticeably higher.
    """

    name: str
    removed: float  # share of the gradient's energy that GC removes
    change: float  # of the mean training loss with GC in all layers: -0.3 is 30 % lower
    faster: bool
    slower: bool
    explained: float | None  # share of the target that the mean of the input explains
    harmed: bool
    harmed_hidden: bool  # the same with GC in the hidden layers only


NOTICEABLE = 0.05  # a change of the loss by less is called no change
EDGES = (0.0, 0.05, 0.20, 0.40, 1.0)  # of the ranges of shares removed; chosen before any run
FEWEST = 3  # tasks below which a range is not described

# begin generated
# fmt: off
WARNING_THRESHOLD = 0.5
OPTIMIZERS: tuple[str, ...] = ("AdamW", "Lion", "Muon", "SGD",)
LAYERS: tuple[str, ...] = ("Conv2d", "ConvTranspose2d", "GRU", "LSTM", "Linear", "MultiheadAttention", "RNN",)
MOST_WEIGHTS = 24_160
POINTS: tuple[Point, ...] = (
)
# fmt: on
# end generated


def sentence(removed: float, explained: float | None = None) -> str:
    """Return what the calibration says about a share of removed gradient, in plain words.

    Args:
        removed: share of the gradient's energy that GC removes, averaged over the first steps without GC.
        explained: share of the target that the mean of the input explains, if known.
    """
    if not 0 <= removed <= 1 + 1e-6:
        raise ValueError(f"removed is a share between 0 and 1, got {removed}")
    low, high = range_of(removed)
    points = [point for point in POINTS if range_of(point.removed) == (low, high)]
    parts = [f"GC removes {_percent(removed)} of the gradient here."]
    if len(points) < FEWEST:
        parts.append("Too few calibration tasks are like that to say what follows.")
    else:
        faster = sum(point.faster for point in points)
        slower = sum(point.slower for point in points)
        changes = sorted(point.change for point in points)
        parts.append(
            f"Of {len(points)} calibration tasks between {_percent(low)} and {_percent(high)}, {faster} trained faster "
            f"with GC, {len(points) - faster - slower} about equally, {slower} slower "
            f"(change of the training loss {_signed(changes[0])} to {_signed(changes[-1])})."
        )
    if explained is not None and explained >= WARNING_THRESHOLD:
        parts.append(_warning(explained))
    return " ".join(parts)


def range_of(removed: float) -> tuple[float, float]:
    """Return the range of shares removed that a share belongs to; ranges include their lower end."""
    index = max(place for place, edge in enumerate(EDGES[:-1]) if removed >= edge)
    return EDGES[index], EDGES[index + 1]


def _warning(explained: float) -> str:
    alike = [p for p in POINTS if p.explained is not None and p.explained >= WARNING_THRESHOLD]
    harmed, hidden = sum(p.harmed for p in alike), sum(p.harmed_hidden for p in alike)
    text = f"The mean of the input explains {_percent(explained)} of the target: GC in the input layer can hurt here."
    if len(alike) >= FEWEST:
        text += (
            f" Of {len(alike)} calibration tasks with such a target ({_percent(WARNING_THRESHOLD)} or more), GC in all "
            f"layers harmed {harmed} and GC in the hidden layers {hidden}."
        )
    return f'{text} Try layers="hidden" first.'


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _signed(change: float) -> str:
    return f"{100 * change:+.0f} %".replace("-", "\N{MINUS SIGN}")
