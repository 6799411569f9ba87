"""What a framework tells the planner: its parameters, where each is used, and the rules for its layers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from .entry import Answer
from .traced import Kind


@dataclass(frozen=True, slots=True)
class Use:
    """One place where a parameter is used: a tied weight has several."""

    name: str
    owner: Any  # the module or layer whose rule applies
    local_name: str  # the name that the rule knows, e.g. "weight" for parametrizations.weight.original
    part: str = ""  # which part of a reparametrized weight this is; empty if it is the weight itself


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter to plan. ``key`` is the object under which the plan stores its entry."""

    key: Hashable
    shape: tuple[int, ...]
    uses: tuple[Use, ...]
    trainable: bool = True
    bad_dtype: str = ""  # the dtype's name if tensors of it have no gradients

    @property
    def name(self) -> str:
        """The name of the parameter's first use."""
        return self.uses[0].name


@dataclass(frozen=True, slots=True)
class Resolved:
    """A rule's answer for one use, and whether ``layers=`` counts the layer as convolution or linear."""

    answer: Answer
    kind: Kind | None = None


class Resolver(Protocol):
    """The rules of one framework."""

    noun: str  # what the framework calls a parameter
    module_base: type | None  # the base class of its modules; None: no overrides by module type

    def resolve(self, use: Use, shape: tuple[int, ...]) -> Resolved | None:
        """Return the layout or the reason for one use; None if no rule applies to its owner."""

    def module_name(self, use: Use) -> str:
        """Return the owner's type as the plan's table shows it."""

    def contains(self, module_type: type) -> bool:
        """Whether the model contains a module of this type."""
