"""The entries of a plan: what happens to a parameter, what decided it, and the reason, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ..layout import Layout

Source = Literal["rule", "trace", "override"]


class ReasonCode(Enum):
    """Why a parameter is left alone, or what is worth knowing about one that is centralized.

    The value is the short label under which a plan's summary counts the parameters.
    """

    NONE = ""
    # remarks on parameters that have weight vectors
    SHARED = "shared"
    OVERRIDE = "override"
    FROZEN = "frozen"
    # reasons why a parameter is left alone
    BIAS = "bias"
    NORM_SCALE = "scale of a normalization"
    NORM_BIAS = "bias of a normalization"
    EMBEDDING = "embedding"
    NOT_A_WEIGHT = "not the weight of its layer"
    SINGLE_VECTOR = "single vector"
    SINGLE_NUMBER = "single number"
    REPARAMETRIZED_PART = "part of a reparametrized weight"
    SHAPE_MISMATCH = "packed or factored"
    UNCLEAR_DIMS = "of unclear dims"
    UNKNOWN_MODULE = "of unknown modules"
    ELEMENTWISE = "used elementwise"
    INDEXED = "used by indexing"
    UNCLEAR_USE = "of unclear use"
    NOT_SELECTED = "not selected by layers="
    SHARED_CONFLICT = "shared by layers that lay it out differently"
    TOO_SHORT = "vectors too short"
    LORA_B = "LoRA's B"
    DTYPE = "of a dtype without gradients"
    EMPTY = "without elements"
    USER_RULE = "left alone by a registered rule"
    LEFT_BY_OVERRIDE = "left alone by override"
    LEFT_BY_REQUEST = "left alone by request"
    SWITCHED_OFF = "switched off for its param group"
    NOT_IN_MODEL = "not a parameter of the model"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason as data: programs read ``code``, people read ``text``."""

    code: ReasonCode
    text: str

    @property
    def label(self) -> str:
        """The label under which a summary counts this reason."""
        return self.text if self.code is ReasonCode.USER_RULE else self.code.value


NO_REMARK = Reason(ReasonCode.NONE, "")
Answer = Layout | Reason


@dataclass(frozen=True, slots=True)
class Entry:
    """What happens to one parameter. ``source`` is what decided: a class rule, a trace or an override.

    ``role`` and ``level`` are known if an example was traced, see :class:`gradcent.plan.traced.Traced`.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    layout: Layout | None
    why: Reason = NO_REMARK
    source: Source | None = None
    frozen: bool = False
    role: Literal["input", "hidden"] | None = None
    level: float | None = None

    @property
    def reason(self) -> str:
        """The reason or remark as text; empty if there is none."""
        return self.why.text

    @property
    def centralized(self) -> bool:
        """Whether the gradient is centralized now (a frozen parameter has none)."""
        return self.layout is not None and not self.frozen

    @property
    def numel(self) -> int:
        """Number of elements of the parameter."""
        return math.prod(self.shape)
