"""What a traced forward pass shows about one parameter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ..layout import Layout
from .entry import Answer, Reason, ReasonCode

Kind = Literal["conv", "linear"]
Role = Literal["input", "hidden"]


class Finding(Enum):
    """How the forward pass uses a parameter."""

    CONTRACTED = "contracted"
    CONSTANTS = "contracted with constants only"
    INDEXED = "used by indexing"
    ELEMENTWISE = "used elementwise only"
    AMBIGUOUS = "contracted over different dims, or with another parameter"
    UNFIT = "without a (batch, outer, vectors, inner) view"
    UNCLEAR = "used in a way that the trace does not follow"
    UNREACHED = "not reached by the example"


@dataclass(frozen=True, slots=True)
class Traced:
    """The finding, the layout if there is one, and otherwise the reason in words.

    ``role`` is "input" if the parameter contracts with data that derives from the model's inputs without another
    learned contraction or a table look-up in between. ``level`` is the share of the energy of the layer's inputs that
    is in their mean over the weight vector; None if it was not measured.
    """

    finding: Finding
    layout: Layout | None = None
    text: str = ""
    kind: Kind | None = None
    role: Role | None = None
    level: float | None = None

    @property
    def answer(self) -> Answer | None:
        """The layout or the reason; None if the example does not reach the parameter."""
        if self.finding is Finding.UNREACHED:
            return None
        return self.layout or Reason(_CODES[self.finding], self.text)


_CODES = {
    Finding.CONSTANTS: ReasonCode.UNCLEAR_USE,
    Finding.INDEXED: ReasonCode.INDEXED,
    Finding.ELEMENTWISE: ReasonCode.ELEMENTWISE,
    Finding.AMBIGUOUS: ReasonCode.UNCLEAR_USE,
    Finding.UNFIT: ReasonCode.UNCLEAR_USE,
    Finding.UNCLEAR: ReasonCode.UNCLEAR_USE,
}
