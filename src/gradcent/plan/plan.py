"""The plan of a model: the layout of each parameter, and the reason for each that is left alone."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..layout import Layout
from . import render as table
from . import rules
from .owners import Use, kind_of, uses_of

Layers = Literal["all", "conv", "linear"]
Override = Layout | str | None | Callable[[tuple[int, ...]], Layout]
Overrides = Mapping[str | type[nn.Module], Override]
SWITCHED_OFF = "switched off for its param group"


@dataclass(frozen=True, slots=True)
class Entry:
    """What happens to one parameter, and why."""

    name: str
    module: str
    shape: tuple[int, ...]
    layout: Layout | None
    reason: str
    frozen: bool = False

    @property
    def centralized(self) -> bool:
        """Whether the gradient is centralized now (a frozen parameter has none)."""
        return self.layout is not None and not self.frozen

    @property
    def numel(self) -> int:
        """Number of elements of the parameter."""
        return math.prod(self.shape)


class Plan:
    """The layouts of a model's parameters; prints as the table that :func:`explain` shows."""

    def __init__(self, entries: Iterable[tuple[Tensor, Entry]]) -> None:
        self._entries: dict[Tensor, Entry] = dict(entries)

    @classmethod
    def of(
        cls,
        model: nn.Module | Sequence[nn.Module],
        *,
        layers: Layers = "all",
        overrides: Overrides | None = None,
    ) -> Plan:
        """Plan a model, or several that one optimizer trains."""
        if layers not in ("all", "conv", "linear"):
            raise ValueError(f'layers must be "all", "conv" or "linear", got {layers!r}')
        return cls(_Planner(model, layers, overrides or {}).entries())

    @classmethod
    def chosen(
        cls,
        model: nn.Module | Sequence[nn.Module],
        plan: Plan | None,
        *,
        layers: Layers = "all",
        overrides: Overrides | None = None,
    ) -> Plan:
        """Return the ready plan, or the model's; choices that a ready plan cannot follow are refused."""
        if plan is None:
            return cls.of(model, layers=layers, overrides=overrides)
        if layers != "all" or overrides:
            raise ValueError(
                "the plan is made already, and layers= or overrides= beside it would change nothing: give them to "
                "gradcent.explain(model, …), which makes the plan, or give the model instead"
            )
        return plan

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, tuple[Tensor, Layout | None]]) -> Plan:
        """Plan bare tensors, for those who have no module: name → (tensor, layout or None)."""
        entries = []
        for name, pair in tensors.items():
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TypeError(f"{name} must be a pair (tensor, layout), got {type(pair).__name__}")
            tensor, layout = pair
            entry = Entry(name, "tensor", tuple(tensor.shape), None, "left alone as asked")
            if layout is not None:
                layout.split(tensor.shape)  # says what is wrong, if anything
                entry = _settle(replace(entry, layout=layout, reason=""), tensor)
            entries.append((tensor, entry))
        return cls(entries)

    def layout(self, parameter: Tensor) -> Layout | None:
        """Return the parameter's layout, None if it is left alone or not in the plan."""
        entry = self._entries.get(parameter)
        return None if entry is None else entry.layout

    def entry(self, parameter: Tensor) -> Entry | None:
        """Return what the plan says of a parameter."""
        return self._entries.get(parameter)

    def named_as(self, parameter: Tensor) -> str | None:
        """Return the parameter's name, None if it is not in the plan."""
        entry = self._entries.get(parameter)
        return None if entry is None else entry.name

    def named(self) -> Iterator[tuple[Tensor, Entry]]:
        """Iterate over (parameter, entry)."""
        return iter(self._entries.items())

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the model's order."""
        return tuple(self._entries.values())

    def restricted(self, parameters: Iterable[Tensor], *, off: Iterable[Tensor] = ()) -> Plan:
        """Return the plan of just these parameters; those in ``off`` are switched off."""
        switched = {id(parameter) for parameter in off}
        chosen = []
        for parameter in parameters:
            entry = self._entries.get(parameter)
            if entry is None:
                reason = "not a parameter of the model that was given"
                entry = Entry("(unnamed)", "?", tuple(parameter.shape), None, reason)
            elif id(parameter) in switched:
                entry = replace(entry, layout=None, reason=SWITCHED_OFF)
            chosen.append((parameter, entry))
        return Plan(chosen)

    def merged(self, other: Plan) -> Plan:
        """Return this plan with another's entries added."""
        return Plan([*self._entries.items(), *other._entries.items()])

    def require_something(self, where: str = "model") -> None:
        """Raise if nothing would be centralized: then GC would be off without anybody noticing."""
        if any(entry.layout is not None for entry in self.entries):
            return
        reasons = "; ".join(f"{entry.name}: {entry.reason}" for entry in self.entries[:4])
        more = f"; … and {len(self.entries) - 4} more" if len(self.entries) > 4 else ""
        raise ValueError(
            f"nothing would be centralized in this {where} ({reasons or 'it has no parameters'}{more}). "
            "See gradcent.explain(model); gradcent.register or overrides= teach it your own layers"
        )

    def totals(self) -> dict[str, Any]:
        """Return the plan's totals as plain data."""
        return table.totals_of(self.entries)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dict per parameter."""
        return table.rows_of(self.entries)

    def summary(self) -> str:
        """Return the totals in a few lines of words."""
        return table.summary(self.rows(), self.totals())

    def __str__(self) -> str:
        return table.text(self.rows(), self.totals())

    def __repr__(self) -> str:
        totals = self.totals()
        return f"<Plan: {totals['centralized_tensors']} of {totals['tensors']} tensors centralized>"

    def _repr_html_(self) -> str:
        return table.html(self.rows(), self.totals())


def explain(
    model: nn.Module | Sequence[nn.Module], *, layers: Layers = "all", overrides: Overrides | None = None
) -> Plan:
    """Return the plan of a model: print it, show it in a notebook, or take its ``rows()``.

    >>> print(explain(nn.Linear(3, 2)).summary())
    centralized: 1 of 2 tensors, 6 of 8 parameters (75.0 %): 2 weight vectors of length 3
    left alone: 1 tensor (1 bias)
    """
    return Plan.of(model, layers=layers, overrides=overrides)


class _Planner:
    def __init__(self, model: nn.Module | Sequence[nn.Module], layers: Layers, overrides: Overrides) -> None:
        models = models_of(model)
        self.layers, self.overrides, self.models = layers, _checked(overrides), models
        self.matched, self.hidden = set[str | type](), set[str | type]()
        self.uses: dict[Tensor, list[Use]] = {}
        for index, each in enumerate(models):
            for parameter, use in uses_of(each, f"{index}." if len(models) > 1 else ""):
                self.uses.setdefault(parameter, []).append(use)

    def entries(self) -> list[tuple[Tensor, Entry]]:
        result = [(parameter, self.decide(parameter, uses)) for parameter, uses in self.uses.items()]
        for key in self.overrides:
            if key not in self.matched:
                raise ValueError(self.unmatched(key))
        return result

    def decide(self, parameter: Tensor, uses: list[Use]) -> Entry:
        if torch.nn.parameter.is_lazy(parameter):
            raise ValueError(
                f"parameter {uses[0].name} of lazy {type(uses[0].owner).__name__} has no shape yet: "
                "run one forward pass before making a plan"
            )
        # under deepspeed.zero.Init a parameter is empty from the start, and keeps its shape beside it
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        entry = Entry(uses[0].name, kind_of(uses[0].owner), shape, None, "")
        override = self.overridden(uses, shape)
        if override is not None:
            entry = replace(entry, **self.apply(*override, shape, uses[0]))
        else:
            answers = [self.answer(use, shape) for use in uses]
            entry = replace(entry, **_agree(answers, uses))
        return _settle(entry, parameter)

    def overridden(self, uses: list[Use], shape: tuple[int, ...]) -> tuple[str | type, Override] | None:
        hits = [key for key in self.overrides if any(self.speaks(key, use, shape) for use in uses)]
        self.hidden.update(hits[1:])  # the first that matches decides
        if not hits:
            return None
        self.matched.add(hits[0])
        return hits[0], self.overrides[hits[0]]

    @staticmethod
    def speaks(key: str | type, use: Use, shape: tuple[int, ...]) -> bool:
        if isinstance(key, str):
            return fnmatch.fnmatchcase(use.name, key)
        # A type speaks for the weights of its modules, not for their biases.
        return isinstance(use.owner, key) and len(shape) >= 2

    def apply(self, key: str | type, value: Override, shape: tuple[int, ...], use: Use) -> dict[str, Any]:
        label = repr(key) if isinstance(key, str) else key.__name__
        if value is None:
            return {"layout": None, "reason": f"left alone by override {label}"}
        try:
            layout: Any = rules.layout_named(value, shape) if isinstance(value, str) else value
            if callable(layout):
                layout = layout(shape)
            if isinstance(layout, Layout):
                layout.split(shape)
        except ValueError as error:
            raise ValueError(f"override {label} for parameter {use.name} of shape {shape}: {error}") from None
        if not isinstance(layout, Layout):
            what = f"its function returned {type(layout).__name__}" if callable(value) else repr(value)
            raise TypeError(
                f"override {label} for parameter {use.name}: {what} is no layout; give a Layout, the name of one "
                f"({', '.join(rules.LAYOUTS)}), a function from the shape to a Layout, or None to leave it alone"
            )
        return {"layout": layout, "reason": f"override {label}"}

    def answer(self, use: Use, shape: tuple[int, ...]) -> Layout | str:
        known = rules.find(use.owner)
        if use.part:
            return use.part
        if known is None:
            if len(shape) < 2:
                return rules.no_vectors(use.local, shape)
            return f"own parameter of {kind_of(use.owner)}, a kind of module gradcent does not know"
        answer = known.rule(use.owner, use.local, shape)
        self.check_answer(answer, use, shape)
        if isinstance(answer, Layout) and self.layers != "all" and known.kind != self.layers:
            return f'not a {self.layers} layer, and layers="{self.layers}"'
        return answer

    @staticmethod
    def check_answer(answer: object, use: Use, shape: tuple[int, ...]) -> None:
        """A rule may be the user's own."""
        whose = f"the rule of {kind_of(use.owner)}"
        if isinstance(answer, Layout):
            try:
                answer.split(shape)
            except ValueError as error:
                raise ValueError(f"{whose} for {use.name}: {error}") from None
        elif not isinstance(answer, str):
            raise TypeError(
                f"{whose} returned {type(answer).__name__} for {use.name}: a rule answers with a Layout, or with "
                "a string that says why the parameter is left alone"
            )

    def unmatched(self, key: str | type) -> str:
        if key in self.hidden:
            label = repr(key) if isinstance(key, str) else key.__name__
            return f"override {label} is never used: an earlier one matches all its parameters; put it first"
        if not isinstance(key, str):
            there = any(isinstance(module, key) for model in self.models for module in model.modules())
            why = "has no weights of its own: name its parts" if there else "is not in the model"
            return f"override for module type {key.__name__} matches nothing: it {why}"
        names = [use.name for uses in self.uses.values() for use in uses]
        close = difflib.get_close_matches(key, names, n=3, cutoff=0.3) or names[:3]
        return f"override pattern {key!r} matches no parameter; names look like {', '.join(close)}"


def models_of(model: object) -> list[nn.Module]:
    """Return the model or models that were given, or say what was given in their place."""
    if isinstance(model, nn.Module):
        return [model]
    found = list(model) if isinstance(model, Iterable) else []
    if found and all(isinstance(each, nn.Module) for each in found):
        return found
    hint = ", which is passed as plan=" if isinstance(model, Plan) else ""
    raise TypeError(f"gradcent needs an nn.Module (or a list of them), got {_described(model, found)}{hint}")


def _described(model: object, found: list[Any]) -> str:
    kind = type(model).__name__
    return f"{kind} of {type(found[0]).__name__}" if found and not isinstance(model, str) else kind


def _checked(overrides: object) -> Overrides:
    if not isinstance(overrides, Mapping):
        raise TypeError(
            f"overrides must be a dict from name pattern or module type to layout, got {type(overrides).__name__}"
        )
    for key in overrides:
        if not isinstance(key, str) and not (isinstance(key, type) and issubclass(key, nn.Module)):
            raise TypeError(f"an override is for a name pattern or a module type, got {key!r}")
    return overrides


def _agree(answers: list[Layout | str], uses: list[Use]) -> dict[str, Any]:
    """Settle a parameter that stands in several places; an embedding anywhere decides."""
    layouts = {answer for answer in answers if isinstance(answer, Layout)}
    if rules.EMBEDDING in answers:
        others = [use.name for use, answer in zip(uses, answers, strict=True) if isinstance(answer, Layout)]
        return {"layout": None, "reason": f"embedding, tied to {others[0]}" if others else rules.EMBEDDING}
    if len(layouts) > 1:
        names = " and ".join(use.name for use in uses)
        return {
            "layout": None,
            "reason": f"shared by {names}, which lay it out differently: choose by override",
        }
    if layouts:
        shared = f"shared with {', '.join(use.name for use in uses[1:])}" if len(uses) > 1 else ""
        return {"layout": layouts.pop(), "reason": shared}
    return {"layout": None, "reason": str(answers[0])}


def _settle(entry: Entry, parameter: Tensor) -> Entry:
    """Apply what holds for every layer: vectors of one element, frozen parameters, odd dtypes."""
    if entry.layout is None:
        return entry
    if entry.layout.length == 1:
        reason = "vectors of length 1: centralizing would freeze them for ever"
        return replace(entry, layout=None, reason=reason)
    if not (parameter.is_floating_point() or parameter.is_complex()):
        return replace(entry, layout=None, reason=f"dtype {parameter.dtype} has no gradient")
    if entry.numel == 0:
        return replace(entry, layout=None, reason="has no elements")
    if not parameter.requires_grad:
        note = "frozen now; centralized once it is trained"
        return replace(entry, frozen=True, reason=f"{entry.reason}; {note}" if entry.reason else note)
    return entry
