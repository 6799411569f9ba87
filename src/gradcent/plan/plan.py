"""The plan of a model: the layout of each parameter, and the reason for each that is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..layout import Layout
from . import render
from .entry import Entry, Reason, ReasonCode
from .owners import describe, parameters_of
from .planner import Layers, Override, Use, check_layers, finalize, plan_parameters
from .rules import ModuleRules

Overrides = Mapping[str | type[nn.Module], Override]


class Plan:
    """The layouts of a model's parameters; prints as the table that :func:`explain` shows."""

    def __init__(self, entries: Iterable[tuple[Any, Entry]]) -> None:
        # The keys are the framework's: tensors for torch and Keras, paths for JAX.
        self._entries: dict[Any, Entry] = dict(entries)

    @classmethod
    def of(
        cls,
        model: nn.Module | Sequence[nn.Module],
        *,
        layers: Layers = "all",
        overrides: Overrides | None = None,
    ) -> Plan:
        """Plan a model, or several that one optimizer trains."""
        check_layers(layers)
        models = models_of(model)
        return cls(
            plan_parameters(parameters_of(models), ModuleRules(models), layers=layers, overrides=overrides)
        )

    @classmethod
    def chosen(
        cls,
        model: nn.Module | Sequence[nn.Module],
        plan: Plan | None,
        *,
        layers: Layers = "all",
        overrides: Overrides | None = None,
    ) -> Plan:
        """Return the given plan, or plan the model; options that a given plan would ignore are refused."""
        if plan is None:
            return cls.of(model, layers=layers, overrides=overrides)
        if layers != "all" or overrides:
            raise ValueError(
                "the plan is made already, so layers= and overrides= would change nothing: pass them to "
                "gradcent.explain(model, …), which makes the plan, or pass the model instead of the plan"
            )
        return plan

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, tuple[Tensor, Layout | None]]) -> Plan:
        """Plan tensors that belong to no module: name → (tensor, layout or None)."""
        entries = []
        for name, pair in tensors.items():
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TypeError(f"{name} must be a pair (tensor, layout), got {type(pair).__name__}")
            tensor, layout = pair
            shape = tuple(tensor.shape)
            if layout is None:
                why = Reason(ReasonCode.LEFT_BY_REQUEST, "left alone as requested")
                entry = Entry(name, "tensor", shape, None, why, "override")
            else:
                layout.split(shape)  # raises if the layout does not fit
                entry = Entry(name, "tensor", shape, layout, source="override")
                entry = finalize(entry, describe(tensor, (Use(name, None, name),)))
            entries.append((tensor, entry))
        return cls(entries)

    def layout(self, parameter: Any) -> Layout | None:
        """Return the parameter's layout, None if it is left alone or not in the plan."""
        entry = self._entries.get(parameter)
        return None if entry is None else entry.layout

    def entry(self, parameter: Any) -> Entry | None:
        """Return the parameter's entry, None if it is not in the plan."""
        return self._entries.get(parameter)

    def named_as(self, parameter: Tensor) -> str | None:
        """Return the parameter's name, None if it is not in the plan."""
        entry = self._entries.get(parameter)
        return None if entry is None else entry.name

    def named(self) -> Iterator[tuple[Any, Entry]]:
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
                why = Reason(ReasonCode.NOT_IN_MODEL, "not a parameter of the given model")
                entry = Entry("(unnamed)", "?", tuple(parameter.shape), None, why)
            elif id(parameter) in switched:
                why = Reason(ReasonCode.SWITCHED_OFF, ReasonCode.SWITCHED_OFF.value)
                entry = replace(entry, layout=None, why=why, source="override")
            chosen.append((parameter, entry))
        return Plan(chosen)

    def merged(self, other: Plan) -> Plan:
        """Return this plan with another's entries added."""
        return Plan([*self._entries.items(), *other._entries.items()])

    def require_something(self, where: str = "model") -> None:
        """Raise if nothing would be centralized: GC would be off silently."""
        if any(entry.layout is not None for entry in self.entries):
            return
        reasons = "; ".join(f"{entry.name}: {entry.reason}" for entry in self.entries[:4])
        more = f"; … and {len(self.entries) - 4} more" if len(self.entries) > 4 else ""
        raise ValueError(
            f"nothing would be centralized in this {where} ({reasons or 'it has no parameters'}{more}). "
            "See gradcent.explain(model); gradcent.register or overrides= add rules for your own layers"
        )

    def totals(self) -> dict[str, Any]:
        """Return the plan's totals as plain data."""
        return render.totals_of(self.entries)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dict per parameter."""
        return render.rows_of(self.entries)

    def summary(self) -> str:
        """Return the totals in a few lines of text."""
        return render.summary(self.entries)

    def __str__(self) -> str:
        return render.text(self.entries)

    def __repr__(self) -> str:
        totals = self.totals()
        return f"<Plan: {totals['centralized_tensors']} of {totals['tensors']} tensors centralized>"

    def _repr_html_(self) -> str:
        return render.html(self.entries)


def explain(
    model: nn.Module | Sequence[nn.Module], *, layers: Layers = "all", overrides: Overrides | None = None
) -> Plan:
    """Return the plan of a model: print it, show it in a notebook, or take its ``rows()``.

    >>> print(explain(nn.Linear(3, 2)).summary())
    centralized: 1 of 2 tensors, 6 of 8 parameters (75.0 %): 2 weight vectors of length 3
    left alone: 1 tensor (1 bias)
    """
    return Plan.of(model, layers=layers, overrides=overrides)


def models_of(model: object) -> list[nn.Module]:
    """Return the given model or models as a list; raise if they are something else."""
    if isinstance(model, nn.Module):
        return [model]
    models = list(model) if isinstance(model, Iterable) else []
    if models and all(isinstance(each, nn.Module) for each in models):
        return models
    hint = ", which is passed as plan=" if isinstance(model, Plan) else ""
    raise TypeError(f"gradcent needs an nn.Module (or a list of them), got {_described(model, models)}{hint}")


def _described(model: object, items: list[Any]) -> str:
    kind = type(model).__name__
    return f"{kind} of {type(items[0]).__name__}" if items and not isinstance(model, str) else kind
