"""The options of GC on one optimizer, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .plan import Layers, Overrides
from .plan.planner import LAYERS, MIN_LENGTH, check_min_length

At = Literal["gradient", "update"]
Decay = Literal["auto", "coupled", "decoupled"]
NonFinite = Literal["propagate", "raise", "skip_step"]
KERNELS = ("auto", "native", "triton", "foreach", "reference")


@dataclass(frozen=True, slots=True)
class Options:
    """The user's choices, checked."""

    layers: Layers = "all"
    at: At = "gradient"
    decay: Decay = "auto"
    overrides: Overrides | None = None
    kernel: str = "auto"
    nonfinite: NonFinite = "propagate"
    min_length: int = MIN_LENGTH

    def __post_init__(self) -> None:
        check_min_length(self.min_length)
        _one_of("layers", self.layers, LAYERS)
        _one_of("at", self.at, ("gradient", "update"))
        _one_of("decay", self.decay, ("auto", "coupled", "decoupled"))
        _one_of("kernel", self.kernel, KERNELS)
        _one_of("nonfinite", self.nonfinite, ("propagate", "raise", "skip_step"))


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
