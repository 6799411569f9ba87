"""What a share of removed gradient was worth on the calibration tasks: the sentence of a forecast.

The table below is generated from results/studies/forecast by `python tools/pages.py`; a test fails when it is stale.
One point is one small task: the share of the gradient's energy that GC removes in the first 60 steps without GC, and
the change of the mean training loss with GC, both arms tuned over the same learning rates.
"""

from __future__ import annotations

from collections.abc import Sequence
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
HINT = 0.5  # share of the target explained by the input mean from which on a hint is given (docs/forecast.md)

# begin generated
# fmt: off
OPTIMIZERS: tuple[str, ...] = ("AdamW", "Lion", "Muon", "SGD",)
LAYERS: tuple[str, ...] = ("Conv2d", "ConvTranspose2d", "GRU", "LSTM", "Linear", "MultiheadAttention", "RNN",)
MOST_WEIGHTS = 24_160
POINTS: tuple[Point, ...] = (
    Point("mlp relu, digits, SGD", 0.2265, -0.0089, False, False, 0.051, False, False),
    Point("mlp gelu, digits, SGD", 0.1457, -0.0038, False, False, 0.051, False, False),
    Point("mlp silu, digits, SGD", 0.1130, -0.0066, False, False, 0.051, False, False),
    Point("mlp elu, digits, SGD", 0.0558, 0.0256, False, False, 0.051, False, False),
    Point("mlp sigmoid, digits, SGD", 0.9840, -0.7225, True, False, 0.051, False, False),
    Point("mlp sigmoid, digits, AdamW", 0.6656, -0.7006, True, False, 0.051, False, False),
    Point("mlp tanh, digits, SGD", 0.0097, 0.0020, False, False, 0.051, False, False),
    Point("mlp tanh, digits, AdamW", 0.0098, 0.0068, False, False, 0.051, False, False),
    Point("mlp relu, digits, AdamW", 0.3561, -0.0979, True, False, 0.051, False, False),
    Point("mlp gelu, digits, AdamW", 0.3216, -0.0215, False, False, 0.051, False, False),
    Point("mlp relu, digits, Lion", 0.2207, -0.0144, False, False, 0.051, False, False),
    Point("mlp relu, digits, Muon", 0.2854, 0.0243, False, False, 0.051, False, False),
    Point("mlp BN relu, digits, SGD", 0.0553, 0.0029, False, False, 0.051, False, False),
    Point("mlp BN relu, digits, AdamW", 0.1126, -0.0572, True, False, 0.051, False, True),
    Point("mlp LN relu, digits, SGD", 0.1817, -0.0806, True, False, 0.051, False, False),
    Point("mlp LN relu, digits, AdamW", 0.1779, -0.1073, True, False, 0.051, False, False),
    Point("mlp relu LN, digits, SGD", 0.0033, 0.0847, False, True, 0.051, True, False),
    Point("mlp relu LN, digits, AdamW", 0.0039, 0.0167, False, False, 0.051, False, False),
    Point("mlp sigmoid LN, digits, SGD", 0.0024, 0.0093, False, False, 0.051, False, False),
    Point("mlp LN first, digits, SGD", 0.0000, -0.0000, False, False, 0.051, False, False),
    Point("mlp LN first, digits, AdamW", 0.0000, -0.0008, False, False, 0.051, False, False),
    Point("cnn, digits, SGD", 0.3488, -0.1116, True, False, 0.051, False, False),
    Point("cnn BN, digits, SGD", 0.1613, -0.0607, True, False, 0.051, True, True),
    Point("cnn BN, digits, AdamW", 0.3937, -0.2375, True, False, 0.051, False, False),
    Point("cnn GN, digits, SGD", 0.3859, -0.3162, True, False, 0.051, False, False),
    Point("cnn GN, digits, AdamW", 0.3687, -0.4970, True, False, 0.051, False, False),
    Point("cnn GN, digits, Lion", 0.3981, -0.4807, True, False, 0.051, True, True),
    Point("cnn LN, digits, SGD", 0.3719, -0.3390, True, False, 0.051, False, False),
    Point("cnn BN tanh, digits, SGD", 0.0589, 0.0064, False, False, 0.051, False, False),
    Point("cnn GN tanh, digits, AdamW", 0.1293, -0.0452, False, False, 0.051, False, False),
    Point("cnn BN WS, digits, SGD", 0.1021, -0.0556, True, False, 0.051, True, True),
    Point("cnn GN WS, digits, SGD", 0.0839, -0.0283, False, False, 0.051, False, False),
    Point("residual BN, digits, SGD", 0.2931, -0.2174, True, False, 0.051, False, False),
    Point("residual GN, digits, SGD", 0.6124, -0.5305, True, False, 0.051, False, False),
    Point("u-net BN, denoising, SGD", 0.3319, -0.0811, True, False, 0.028, False, False),
    Point("u-net GN, denoising, AdamW", 0.3437, -0.1220, True, False, 0.028, False, False),
    Point("ViT pre-LN, digits, AdamW", 0.0870, -0.0449, False, False, 0.051, False, False),
    Point("ViT post-LN, digits, AdamW", 0.1231, -0.0363, False, False, 0.051, False, False),
    Point("ViT pre-LN, digits, Muon", 0.0880, -0.0867, True, False, 0.051, False, False),
    Point("mixer, digits, AdamW", 0.1504, -0.0091, False, False, 0.051, False, False),
    Point("characters pre-LN, AdamW", 0.0145, 0.0048, False, False, None, False, False),
    Point("characters post-LN, AdamW", 0.0144, 0.0044, False, False, None, False, False),
    Point("LSTM, rows of digits, AdamW", 0.0318, 0.0857, False, True, 0.051, True, False),
    Point("GRU, rows of digits, SGD", 0.0479, 0.0996, False, True, 0.051, True, False),
    Point("RNN, adding, AdamW", 0.0181, 0.0024, False, False, 0.174, False, False),
    Point("mlp relu, wine, SGD", 0.2529, -0.2893, True, False, 0.456, False, False),
    Point("mlp relu, Friedman, AdamW", 0.2187, -0.1894, True, False, 0.308, False, False),
    Point("mlp relu, diabetes, AdamW", 0.2982, -0.2159, True, False, 0.238, True, False),
    Point("mlp relu, image from coordinates, AdamW", 0.3214, -0.2809, True, False, 0.001, False, False),
    Point("mlp relu Fourier, image from coordinates, AdamW", 0.2257, -0.0463, False, False, 0.001, False, False),
    Point("mlp sine, image from coordinates, AdamW", 0.0149, 0.0017, False, False, 0.001, False, False),
    Point("mlp tanh, image from coordinates, AdamW", 0.0098, -0.0590, False, False, 0.001, False, False),
    Point("graph, blocks, AdamW", 0.2144, -0.0870, True, False, 0.465, False, False),
    Point("graph, blocks, SGD", 0.2150, -0.0844, True, False, 0.465, False, False),
    Point("graph convolution, AdamW", 0.2687, 0.1274, False, True, 0.019, True, False),
    Point("graph convolution, SGD", 0.2870, 0.0712, False, True, 0.019, True, False),
    Point("cnn GN, brightness, SGD", 0.5083, 0.0362, False, False, 0.919, True, False),
    Point("cnn BN, brightness, AdamW", 0.4774, -0.0618, True, False, 0.919, False, False),
    Point("mlp relu, brightness, SGD", 0.1913, 0.6716, False, True, 0.919, True, False),
    Point("mlp tanh, brightness, AdamW", 0.0135, 1.0214, False, True, 0.919, True, False),
    Point("mlp relu, ink, AdamW", 0.1485, 0.8275, False, True, 1.0, True, False),
    Point("ViT pre-LN, brightness, AdamW", 0.1025, -0.0087, False, False, 0.919, False, False),
    Point("mlp relu, breast cancer, SGD", 0.1987, 0.0487, False, False, 0.588, False, True),
    Point("mlp relu, breast cancer, AdamW", 0.2521, -0.1002, False, False, 0.588, False, False),
    Point("mlp relu, mean of columns, AdamW", 0.2453, 0.5087, False, True, 0.999, True, True),
    Point("mlp tanh, mean of columns, SGD", 0.0389, 0.2576, False, True, 0.999, True, False),
    Point("mlp relu, flow around a cylinder, AdamW", 0.3685, -0.3589, True, False, 0.017, False, False),
    Point("mlp tanh, flow around a cylinder, Lion", 0.1226, -0.0171, False, False, 0.017, False, False),
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
    hint = _hint(explained)
    return " ".join([*parts, hint] if hint else parts)


def range_of(removed: float) -> tuple[float, float]:
    """Return the range of shares removed that a share belongs to; ranges include their lower end."""
    index = max(place for place, edge in enumerate(EDGES[:-1]) if removed >= edge)
    return EDGES[index], EDGES[index + 1]


def _hint(explained: float | None) -> str:
    """Return what is known about harm: a hint, because harm also occurs where the input mean explains little."""
    if explained is None or explained < HINT:
        if not POINTS:
            return ""
        return f'{_harmed(POINTS, "all")}: if GC trains slower here, try layers="hidden".'
    text = f"The mean of the input explains {_percent(explained)} of the target: GC in the input layer can hurt here."
    alike = [point for point in POINTS if point.explained is not None and point.explained >= HINT]
    if len(alike) >= FEWEST:
        text += f" {_harmed(alike, f'with {_percent(HINT)} or more')}."
    return f'{text} Try layers="hidden" first.'


def _harmed(points: Sequence[Point], which: str) -> str:
    harmed, hidden = sum(point.harmed for point in points), sum(point.harmed_hidden for point in points)
    tasks = f"all {len(points)} tasks" if which == "all" else f"the {len(points)} tasks {which}"
    return f"Of {tasks}, GC in all layers harmed {harmed}, GC in the hidden layers only harmed {hidden}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _signed(change: float) -> str:
    return f"{100 * change:+.0f} %".replace("-", "\N{MINUS SIGN}")
