"""The plan of a model: the layout of each parameter, and the reason for each that is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..layout import Layout
from ..user_warning import warn_user
from . import render
from .entry import Entry, Reason, ReasonCode
from .forward import ExampleForward
from .overrides import Override
from .owners import describe, parameters_of
from .parameter import Parameter, Use
from .planner import MIN_LENGTH, Layers, finalize, plan_parameters
from .rules import ModuleRules
from .traced import Traced
from .tracing import trace

Overrides = Mapping[str | type[nn.Module], Override]


class Plan:
    """The layouts of a model's parameters; prints as the table that :func:`explain` shows.

    >>> model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5))
    >>> plan = gradcent.Plan.of(model)
    >>> [(entry.name, entry.centralized) for entry in plan.entries][:2]
    [('0.weight', True), ('0.bias', False)]
    >>> plan.rows()[1]["reason_code"]
    'BIAS'
    """

    def __init__(
        self, entries: Iterable[tuple[Any, Entry]], traced: Mapping[str, Traced] | None = None
    ) -> None:
        # The keys are the framework's: tensors for torch and Keras, paths for JAX.
        self._entries: dict[Any, Entry] = dict(entries)
        # By parameter name: what the example showed, for planning the model again when its parameters are replaced.
        self.traced = traced

    @classmethod
    def of(
        cls,
        model: nn.Module | Sequence[nn.Module],
        *,
        layers: Layers = "all",
        overrides: Overrides | None = None,
        min_length: int = MIN_LENGTH,
        example: Any = None,
        example_forward: ExampleForward | None = None,
        traced: Mapping[str, Traced] | None = None,
    ) -> Plan:
        """Plan a model, or several that one optimizer trains; ``traced`` are the results of an earlier trace."""
        with_example = example is not None or example_forward is not None
        models = models_of(model)
        parameters = list(parameters_of(models))
        if with_example:
            by_parameter: dict[Any, Traced] = dict(trace(model, example, example_forward))
            traced = {
                use.name: by_parameter[parameter.key]
                for parameter in parameters
                for use in parameter.uses
                if parameter.key in by_parameter
            }
        known = traced or {}

        def look_up(parameter: Parameter) -> Traced | None:
            return known.get(parameter.name)

        entries = plan_parameters(
            parameters,
            ModuleRules(models),
            layers=layers,
            overrides=overrides,
            min_length=min_length,
            trace=None if traced is None else look_up,
        )
        return cls(entries, traced)

    @classmethod
    def chosen(
        cls,
        model: nn.Module | Sequence[nn.Module],
        plan: Plan | None,
        *,
        layers: Layers = "all",
        overrides: Overrides | None = None,
        min_length: int = MIN_LENGTH,
        example: Any = None,
        example_forward: ExampleForward | None = None,
    ) -> Plan:
        """Return the given plan, or plan the model; options that a given plan would ignore are refused."""
        if plan is None:
            return cls.of(
                model,
                layers=layers,
                overrides=overrides,
                min_length=min_length,
                example=example,
                example_forward=example_forward,
            )
        chosen = layers != "all" or overrides or min_length != MIN_LENGTH
        if chosen or example is not None or example_forward is not None:
            raise ValueError(
                "the plan is made already, so layers=, overrides=, min_length= and example= would change nothing: pass "
                "them to gradcent.explain(model, …), which makes the plan, or pass the model instead of the plan"
            )
        return plan if model is None else plan.rebound(model)

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
        return Plan(chosen, self.traced)

    def merged(self, other: Plan) -> Plan:
        """Return this plan with another's entries added."""
        return Plan([*self._entries.items(), *other._entries.items()], self.traced or other.traced)

    def rebound(self, model: nn.Module | Sequence[nn.Module]) -> Plan:
        """Return the plan for a model whose parameters were replaced by others of the same names: FSDP2 shards them."""
        parameters = list(parameters_of(models_of(model)))
        if any(parameter.key in self._entries for parameter in parameters):
            return self
        by_name = {entry.name: entry for entry in self.entries}
        pairs = [(parameter, by_name.get(parameter.name)) for parameter in parameters]
        if not all(entry is not None and entry.shape == parameter.shape for parameter, entry in pairs):
            return self
        return Plan([(parameter.key, entry) for parameter, entry in pairs if entry is not None], self.traced)

    def unknown_share(self) -> tuple[float, list[Entry]]:
        """Return the share of the trainable matrices' elements that belong to unknown modules, and their entries."""
        trained = [
            entry
            for parameter, entry in self._entries.items()
            if parameter.requires_grad and sum(size > 1 for size in entry.shape) > 1
        ]
        unknown = [entry for entry in trained if entry.why.code is ReasonCode.UNKNOWN_MODULE]
        total = sum(entry.numel for entry in trained)
        return (sum(entry.numel for entry in unknown) / total if total else 0.0), unknown

    def warn_if_unknown(self) -> None:
        """Warn if more than 1 % of the matrices are left alone because their modules are unknown."""
        share, unknown = self.unknown_share()
        if self.traced is not None or share <= 0.01:
            return
        classes = sorted({entry.module for entry in unknown})
        shown = ", ".join(classes[:4]) + (f" and {len(classes) - 4} more" if len(classes) > 4 else "")
        tensors = f"{len(unknown)} tensor{'s' if len(unknown) > 1 else ''}"
        warn_user(
            f"gradcent: {share:.1%} of the elements of the trainable matrices ({tensors}, of {shown}) are left alone, "
            "because gradcent does not know these modules. Pass example=batch, so that one forward pass shows how they "
            f"are used; or add a rule with gradcent.register({classes[0]}, …), or layouts with overrides=",
        )

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

    def status_line(self, at: str = "gradient") -> str:
        """Return one line: how many tensors are centralized, and which share of the weights they hold."""
        return render.status_line(self.entries, at)

    def __str__(self) -> str:
        return render.text(self.entries)

    def __repr__(self) -> str:
        totals = self.totals()
        return f"<Plan: {totals['centralized_tensors']} of {totals['tensors']} tensors centralized>"

    def _repr_html_(self) -> str:
        return render.html(self.entries)


def explain(
    model: nn.Module | Sequence[nn.Module],
    *,
    layers: Layers = "all",
    overrides: Overrides | None = None,
    min_length: int = MIN_LENGTH,
    example: Any = None,
    example_forward: ExampleForward | None = None,
) -> Plan:
    """Return the plan of a model: print it, show it in a notebook, or take its ``rows()``.

    With ``example=batch`` one forward pass is traced: it shows the weight vectors of modules that gradcent does not
    know, and each layer's role and level. ``example_forward=lambda model, batch: …`` runs a model that is not called
    with the batch itself.

    >>> print(explain(nn.Linear(3, 2)).summary())
    centralized: 1 of 2 tensors, 6 of 8 parameters (75.0 %): 2 weight vectors of length 3
    left alone: 1 tensor (1 bias)
    """
    return Plan.of(
        model,
        layers=layers,
        overrides=overrides,
        min_length=min_length,
        example=example,
        example_forward=example_forward,
    )


def models_of(model: object) -> list[nn.Module]:
    """Return the given model or models as a list; raise if they are something else."""
    if isinstance(model, nn.Module):
        return [model]
    models = list(model) if isinstance(model, Iterable) else []
    if models and all(isinstance(item, nn.Module) for item in models):
        return models
    hint = ", which is passed as plan=" if isinstance(model, Plan) else ""
    raise TypeError(f"gradcent needs an nn.Module (or a list of them), got {_described(model, models)}{hint}")


def _described(model: object, items: list[Any]) -> str:
    kind = type(model).__name__
    return f"{kind} of {type(items[0]).__name__}" if items and not isinstance(model, str) else kind
