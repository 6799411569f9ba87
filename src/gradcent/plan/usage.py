"""What a traced forward pass records: about each parameter, and about what a tensor is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from .contractions import Level
from .provenance import Factor, Source


class Origin(IntEnum):
    """What a tensor depends on; an operator's output has the largest of its operands."""

    CONSTANT = 0  # nothing, or parameters alone (see Held)
    LEARNED = 1  # a learned table or token that a layer reads as its input
    INPUT = 2  # the model's inputs, without a learned contraction or a table look-up in between
    HIDDEN = 3


class Evidence(IntEnum):
    """What a contraction says about a parameter's weight vectors; the largest decides."""

    PRODUCT = 0  # contracted with another parameter: either of the two may be the weight
    CONSTANT = (
        1  # contracted with constants: a look-up by one-hot vectors, the power iteration of spectral norm
    )
    LEARNED = 2
    DATA = 3
    KERNEL = 4  # mixed from a bank of kernels, then the kernel of a convolution


@dataclass(slots=True)
class Usage:
    """How the forward pass uses one parameter."""

    # What is summed over, as parts of the parameter's dims; None: the strides do not tell.
    contractions: dict[Evidence, set[frozenset[Factor] | None]] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    origins: set[Origin] = field(default_factory=set)
    levels: list[Level] = field(default_factory=list)
    indexed: bool = False
    elementwise: bool = False
    operators: set[str] = field(default_factory=set)  # other uses, in words

    @property
    def reached(self) -> bool:
        """Whether the pass uses the parameter at all."""
        return bool(self.contractions or self.indexed or self.elementwise or self.operators)


@dataclass(frozen=True, slots=True)
class Held:
    """The parameters that a storage holds.

    ``passed``: it was an argument of a module's forward, as data is. ``selected``: matrices of a stack, chosen by
    indices. ``mixed``: a combination of the rows of a bank, weighted by data.
    """

    sources: tuple[Source, ...]
    passed: bool = False
    selected: bool = False
    mixed: bool = False
