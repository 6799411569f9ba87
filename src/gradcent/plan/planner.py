"""One planner for every framework: overrides first, then class rules, then a trace of the forward pass.

A framework supplies its parameters (:class:`Parameter`) and a :class:`Resolver`, which knows the rules for its
layers. This module applies what is the same everywhere: overrides, ``layers=``, weights that several layers share,
vectors that are too short, frozen parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..layout import Layout
from ..user_warning import warn_user
from .entry import NO_REMARK, Answer, Entry, Reason, ReasonCode
from .overrides import Override, OverrideTable
from .parameter import Parameter, Resolved, Resolver, Use
from .provenance import same_vectors
from .traced import Finding, Traced

Layers = Literal["all", "conv", "linear", "hidden", "input"]
LAYERS: tuple[str, ...] = ("all", "conv", "linear", "hidden", "input")
ROLES: tuple[str, ...] = ("hidden", "input")

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
    chosen = OverrideTable(overrides, resolver.module_base)
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


def check_layers(layers: object, *, traced: bool) -> None:
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
    overrides: OverrideTable,
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
    """Warn if the forward pass contracts a parameter over other dims than its class rule says, or indexes it."""
    if traced.finding is Finding.INDEXED:  # transformers' LayoutLMv3 uses a Linear's weight as a table
        use, choice = "reads it by indexing, as an embedding table", f"overrides={{{parameter.name!r}: None}}"
    elif traced.layout is not None and not same_vectors(parameter.shape, layout, traced.layout):
        use, choice = f"contracts it as {traced.layout}", f"overrides={{{parameter.name!r}: …}}"
    else:
        return
    warn_user(
        f"gradcent: the class rule for {parameter.name} of shape {parameter.shape} gives {layout}, but the forward "
        f"pass {use}. The rule is used; choose the other by {choice}, and please report this",
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
        warn_user(
            f"gradcent: the example does not reach {', '.join(names[:4])}{more}, and no class rule applies: left "
            "alone. Use an example that reaches them, or overrides=",
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
