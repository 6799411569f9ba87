"""One planner for every framework: overrides first, then class rules, then a trace of the forward pass.

A framework supplies its parameters (:class:`Parameter`) and a :class:`Resolver`, which knows the rules for its
layers. This module applies what is the same everywhere: overrides, ``layers=``, weights that several layers share,
vectors that are too short, frozen parameters.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from ..layout import LAYOUT_NAMES, Layout, layout_named
from .entry import NO_REMARK, Answer, Entry, Reason, ReasonCode
from .provenance import same_vectors
from .traced import Finding, Kind, Traced

Layers = Literal["all", "conv", "linear", "hidden", "input"]
LAYERS: tuple[str, ...] = ("all", "conv", "linear", "hidden", "input")
ROLES: tuple[str, ...] = ("hidden", "input")
Override = Layout | str | None | Callable[[tuple[int, ...]], Layout]


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


# What a traced forward pass shows about a parameter; None: the trace does not know it.
Trace = Callable[[Parameter], Traced | None]


# A weight vector of length n keeps n − 1 of its n directions. With n = 2 only the direction (1, −1) is left: GC would
# choose the direction of every step. From n = 3 on the gradient decides.
MIN_LENGTH = 3


def plan_parameters(
    parameters: Iterable[Parameter],
    resolver: Resolver,
    *,
    layers: Layers = "all",
    overrides: Mapping[Any, Override] | None = None,
    min_length: int = MIN_LENGTH,
    trace: Trace | None = None,
) -> list[tuple[Any, Entry]]:
    """Return (key, entry) for every parameter; an override that decides nothing is an error."""
    check_min_length(min_length)
    check_layers(layers, traced=trace is not None)
    chosen = _Overrides(overrides, resolver.module_base)
    parameters = list(parameters)
    planned = [
        (
            parameter.key,
            _plan_one(parameter, resolver, layers, chosen, min_length, trace and trace(parameter)),
        )
        for parameter in parameters
    ]
    chosen.require_all_used(parameters, resolver)
    if trace is not None:
        _warn_unreached(parameters, [entry for _, entry in planned], trace)
    return planned


def check_layers(layers: object, *, traced: bool = False) -> None:
    """Raise if ``layers`` is not one of the choices, or needs an example that is not there."""
    if layers not in LAYERS:
        choices = '"all", "conv", "linear", "hidden" or "input"'
        raise ValueError(f"layers must be {choices}, got {layers!r}")
    if layers in ROLES and not traced:
        raise ValueError(
            f'layers="{layers}" selects by a layer\'s role, which a traced forward pass shows: pass example=batch too'
        )


def check_min_length(min_length: object) -> None:
    """Raise if ``min_length`` is not a length."""
    if not isinstance(min_length, int) or isinstance(min_length, bool) or min_length < 2:
        raise ValueError(
            f"min_length must be an integer of 2 or more, got {min_length!r}: the centralized gradient of a vector of "
            "length 1 is always zero"
        )


def _plan_one(
    parameter: Parameter,
    resolver: Resolver,
    layers: Layers,
    overrides: _Overrides,
    min_length: int,
    traced: Traced | None,
) -> Entry:
    entry = Entry(parameter.name, resolver.module_name(parameter.uses[0]), parameter.shape, None)
    if traced is not None:
        entry = replace(entry, role=traced.role, level=traced.level)
    key = overrides.find(parameter)
    if key is not None:
        layout, why = overrides.apply(key, parameter)
        return finalize(replace(entry, layout=layout, why=why, source="override"), parameter)
    resolved = [resolver.resolve(use, parameter.shape) for use in parameter.uses]
    answer = traced.answer if traced is not None and not any(map(_applies, resolved)) else None
    if traced is not None and answer is not None:
        answers = [_select(Resolved(answer, traced.kind), layers, traced)]
        layout, why = _merge_shared(answers, parameter.uses)
        return finalize(replace(entry, layout=layout, why=why, source="trace"), parameter, min_length)
    answers = [
        _unknown(use, resolver, parameter.shape) if result is None else _select(result, layers, traced)
        for use, result in zip(parameter.uses, resolved, strict=True)
    ]
    layout, why = _merge_shared(answers, parameter.uses)
    if traced is not None and layout is not None:
        _check_agreement(parameter, layout, traced)
    return finalize(replace(entry, layout=layout, why=why, source="rule"), parameter, min_length)


def _applies(resolved: Resolved | None) -> bool:
    """Whether a rule knows the parameter: not if it is one that a subclass added to a known layer."""
    if resolved is None:
        return False
    unknown = (ReasonCode.NOT_A_WEIGHT, ReasonCode.UNKNOWN_MODULE)
    return isinstance(resolved.answer, Layout) or resolved.answer.code not in unknown


def _check_agreement(parameter: Parameter, layout: Layout, traced: Traced) -> None:
    """Warn if the forward pass contracts a parameter over other dims than its class rule says."""
    if traced.layout is None or same_vectors(parameter.shape, layout, traced.layout):
        return
    warnings.warn(
        f"gradcent: the class rule for {parameter.name} of shape {parameter.shape} gives {layout}, but the forward "
        f"pass contracts it as {traced.layout}. The rule is used; choose the other by "
        f"overrides={{{parameter.name!r}: …}}, and please report this",
        stacklevel=6,
    )


def _warn_unreached(parameters: Sequence[Parameter], entries: Sequence[Entry], trace: Trace) -> None:
    """Name the parameters that neither a rule nor the example explains."""
    names = []
    for parameter, entry in zip(parameters, entries, strict=True):
        traced = trace(parameter)
        unreached = traced is None or traced.finding is Finding.UNREACHED
        if unreached and entry.why.code is ReasonCode.UNKNOWN_MODULE and parameter.trainable:
            names.append(parameter.name)
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        warnings.warn(
            f"gradcent: the example does not reach {', '.join(names[:4])}{more}, and no class rule applies: left "
            "alone. Use an example that reaches them, or overrides=",
            stacklevel=5,
        )


def no_vectors(name: str, shape: tuple[int, ...]) -> Reason:
    """Return why a parameter of fewer than two dims has no weight vectors."""
    if "bias" in name:
        return Reason(ReasonCode.BIAS, "bias")
    if shape:
        return Reason(ReasonCode.SINGLE_VECTOR, "a single vector, not a list of weight vectors")
    return Reason(ReasonCode.SINGLE_NUMBER, "a single number")


def finalize(entry: Entry, parameter: Parameter, min_length: int = MIN_LENGTH) -> Entry:
    """Apply what holds for every layer: short vectors, LoRA's B, dtypes without gradients, frozen parameters.

    An override decides for short vectors and for LoRA's B, too.
    """
    if entry.layout is None:
        return entry
    length = entry.layout.length
    if length == 1:
        text = "vectors of length 1: the centralized gradient would always be zero"
        return replace(entry, layout=None, why=Reason(ReasonCode.TOO_SHORT, text))
    if length < min_length and entry.source != "override":
        text = f"vectors of length {length}, shorter than min_length={min_length}"
        return replace(entry, layout=None, why=Reason(ReasonCode.TOO_SHORT, text))
    if _is_lora_b(parameter) and entry.source != "override":
        text = "LoRA's B starts at 0: centralizing keeps the sums of its rows at 0 and costs the adapter one rank"
        return replace(entry, layout=None, why=Reason(ReasonCode.LORA_B, text))
    if parameter.bad_dtype:
        text = f"dtype {parameter.bad_dtype} has no gradient"
        return replace(entry, layout=None, why=Reason(ReasonCode.DTYPE, text))
    if entry.numel == 0:
        return replace(entry, layout=None, why=Reason(ReasonCode.EMPTY, "has no elements"))
    if not parameter.trainable:
        text = "frozen now; centralized once it is trained"
        text = f"{entry.reason}; {text}" if entry.reason else text
        return replace(entry, frozen=True, why=Reason(ReasonCode.FROZEN, text))
    return entry


def _is_lora_b(parameter: Parameter) -> bool:
    """Whether a name says so: PEFT's, loralib's and lit-gpt's lora_B, torchtune's lora_b."""
    return any("lora_b" in re.split(r"[./]", use.name.lower()) for use in parameter.uses)


def _unknown(use: Use, resolver: Resolver, shape: tuple[int, ...]) -> Reason:
    if len(shape) < 2:
        return no_vectors(use.local_name, shape)
    module = resolver.module_name(use)
    return Reason(
        ReasonCode.UNKNOWN_MODULE, f"own {resolver.noun} of {module}, a kind of module gradcent does not know"
    )


def _select(resolved: Resolved, layers: Layers, traced: Traced | None) -> Answer:
    """Apply ``layers=``: by the kind of module or by the role, never by the number of dims."""
    if not isinstance(resolved.answer, Layout) or layers == "all":
        return resolved.answer
    if layers not in ROLES:
        if resolved.kind == layers:
            return resolved.answer
    elif traced is not None and traced.role == layers:
        return resolved.answer
    elif traced is None or traced.role is None:
        text = f'of unknown role (the example does not reach it), and layers="{layers}"'
        return Reason(ReasonCode.NOT_SELECTED, text)
    article = "an" if layers == "input" else "a"
    return Reason(ReasonCode.NOT_SELECTED, f'not {article} {layers} layer, and layers="{layers}"')


def _merge_shared(answers: Sequence[Answer], uses: Sequence[Use]) -> tuple[Layout | None, Reason]:
    """Decide for a parameter with several uses; one use as an embedding decides for all."""
    layouts = {answer for answer in answers if isinstance(answer, Layout)}
    reasons = [answer for answer in answers if isinstance(answer, Reason)]
    embedding = next((reason for reason in reasons if reason.code is ReasonCode.EMBEDDING), None)
    if embedding is not None:
        others = [use.name for use, answer in zip(uses, answers, strict=True) if isinstance(answer, Layout)]
        text = f"embedding, tied to {others[0]}" if others else embedding.text
        return None, Reason(ReasonCode.EMBEDDING, text)
    if len(layouts) > 1:
        names = " and ".join(use.name for use in uses)
        text = f"shared by {names}, which lay it out differently: choose by override"
        return None, Reason(ReasonCode.SHARED_CONFLICT, text)
    if not layouts:
        return None, reasons[0]
    if len(uses) == 1:
        return layouts.pop(), NO_REMARK
    text = f"shared with {', '.join(use.name for use in uses[1:])}"
    return layouts.pop(), Reason(ReasonCode.SHARED, text)


class _Overrides:
    """The user's overrides by name pattern or module type; the first that matches a parameter decides."""

    def __init__(self, overrides: object, module_base: type | None) -> None:
        if overrides is not None and not isinstance(overrides, Mapping):
            raise TypeError(
                "overrides must be a dict from name pattern or module type to layout, got "
                f"{type(overrides).__name__}"
            )
        self.values: Mapping[Any, Override] = overrides or {}
        for key in self.values:
            is_module_type = (
                module_base is not None and isinstance(key, type) and issubclass(key, module_base)
            )
            if not isinstance(key, str) and not is_module_type:
                raise TypeError(f"an override is for a name pattern or a module type, got {key!r}")
        self.used, self.shadowed = set[Any](), set[Any]()

    def find(self, parameter: Parameter) -> str | type | None:
        hits = [
            key for key in self.values if any(matches(key, use, parameter.shape) for use in parameter.uses)
        ]
        self.used.update(hits[:1])
        self.shadowed.update(hits[1:])
        return hits[0] if hits else None

    def apply(self, key: str | type, parameter: Parameter) -> tuple[Layout | None, Reason]:
        value, label, shape = self.values[key], _label(key), parameter.shape
        if value is None:
            return None, Reason(ReasonCode.LEFT_BY_OVERRIDE, f"left alone by override {label}")
        where = f"override {label} for parameter {parameter.name}"
        try:
            layout: Any = layout_named(value, shape) if isinstance(value, str) else value
            if callable(layout):
                layout = layout(shape)
            if isinstance(layout, Layout):
                layout.split(shape)
        except ValueError as error:
            raise ValueError(f"{where} of shape {shape}: {error}") from None
        if not isinstance(layout, Layout):
            what = f"its function returned {type(layout).__name__}" if callable(value) else repr(value)
            raise TypeError(
                f"{where}: {what} is no layout; give a Layout, the name of one ({', '.join(LAYOUT_NAMES)}), "
                "a function from the shape to a Layout, or None to leave it alone"
            )
        return layout, Reason(ReasonCode.OVERRIDE, f"override {label}")

    def require_all_used(self, parameters: Sequence[Parameter], resolver: Resolver) -> None:
        for key in self.values:
            if key not in self.used:
                raise ValueError(self._why_unused(key, parameters, resolver))

    def _why_unused(self, key: str | type, parameters: Sequence[Parameter], resolver: Resolver) -> str:
        if key in self.shadowed:
            return f"override {_label(key)} is never used: an earlier one matches all its parameters; put it first"
        if not isinstance(key, str):
            present = resolver.contains(key)
            why = "has no weights of its own: name its parts" if present else "is not in the model"
            return f"override for module type {key.__name__} matches nothing: it {why}"
        names = [use.name for parameter in parameters for use in parameter.uses]
        similar = difflib.get_close_matches(key, names, n=3, cutoff=0.3) or names[:3]
        return f"override pattern {key!r} matches no {resolver.noun}; names look like {', '.join(similar)}"


def matches(key: str | type, use: Use, shape: tuple[int, ...]) -> bool:
    """Whether an override applies to a use. A module type stands for its weights, not for its biases."""
    if isinstance(key, str):
        return fnmatch.fnmatchcase(use.name, key)
    return isinstance(use.owner, key) and len(shape) >= 2


def _label(key: str | type) -> str:
    return repr(key) if isinstance(key, str) else key.__name__
