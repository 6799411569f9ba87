"""The class rules for torch modules: which parameters consist of weight vectors, and along which dims.

A rule answers for one parameter of one module: with its :class:`Layout`, or with the reason why it is left alone.
A rule is looked up by module type, and subclasses count as their parent. :func:`register` adds rules for the user's
own modules. Selection is never by a tensor's rank: other implementations that do so alter norm scales, class tokens
and position embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..layout import LAYOUT_NAMES, MIN_DIMS, Layout, layout_named
from .entry import Answer, Reason, ReasonCode
from .named_rules import find_by_name
from .owners import type_name
from .parameter import Resolved, Use
from .planner import no_vectors
from .traced import Kind

# A user's rule gives its reason as a string.
Rule = Callable[[nn.Module, str, tuple[int, ...]], Answer | str]


@dataclass(frozen=True, slots=True)
class ClassRule:
    """A rule and what `layers=` counts its modules as (None: the rule never gives a layout)."""

    rule: Rule
    kind: Kind | None


class ModuleRules:
    """The resolver for torch models (:class:`gradcent.plan.parameter.Resolver`)."""

    noun = "parameter"
    module_base: type | None = nn.Module

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = models

    def resolve(self, use: Use, shape: tuple[int, ...]) -> Resolved | None:
        """Return the class rule's answer for one use of a parameter; None if no rule applies."""
        if use.part:
            return Resolved(Reason(ReasonCode.REPARAMETRIZED_PART, use.part))
        known = find(use.owner)
        if known is None:
            return None
        answer = known.rule(use.owner, use.local_name, shape)
        return Resolved(_checked(answer, use, shape), known.kind)

    def module_name(self, use: Use) -> str:
        """Return the name of the owner's type."""
        return type_name(use.owner)

    def contains(self, module_type: type) -> bool:
        """Whether one of the models contains a module of this type."""
        return any(isinstance(module, module_type) for model in self.models for module in model.modules())


def _checked(answer: object, use: Use, shape: tuple[int, ...]) -> Answer:
    """Return a rule's answer as data; a rule may be the user's own, so its answer is checked."""
    rule_of = f"the rule of {type_name(use.owner)}"
    if isinstance(answer, str):
        return Reason(ReasonCode.USER_RULE, answer)
    if isinstance(answer, Reason):
        return answer
    if not isinstance(answer, Layout):
        raise TypeError(
            f"{rule_of} returned {type(answer).__name__} for {use.name}: a rule answers with a Layout, or with "
            "a string that says why the parameter is left alone"
        )
    try:
        answer.split(shape)
    except ValueError as error:
        raise ValueError(f"{rule_of} for {use.name}: {error}") from None
    return answer


def register(
    module_type: type[nn.Module], rule: Rule | str, *, kind: Kind = "linear", replace: bool = False
) -> None:
    """Add a rule for a module type.

    ``rule`` is the name of a layout ("rows", "columns", "stacked_rows", "stacked_columns") for every parameter of the
    module with enough dims, or a function ``(module, name, shape) -> Layout | str`` in which a string is the reason
    for leaving the parameter alone. ``kind`` is what ``layers="conv"|"linear"`` counts the module as.

    >>> class Experts(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = nn.Parameter(torch.zeros(4, 8, 16))  # (experts, in, out)
    >>> gradcent.register(Experts, "stacked_columns")
    >>> model = Experts()
    >>> gradcent.explain(model).layout(model.w)
    Layout(batch=4, outer=8, vectors=16, inner=1)
    >>> gradcent.unregister(Experts)
    """
    if not (isinstance(module_type, type) and issubclass(module_type, nn.Module)):
        raise TypeError(f"register needs a subclass of nn.Module, got {module_type!r}")
    if kind not in ("conv", "linear"):
        raise ValueError(f'kind must be "conv" or "linear", got {kind!r}')
    if not isinstance(rule, str) and not callable(rule):
        raise TypeError(
            f"rule must be the name of a layout ({', '.join(LAYOUT_NAMES)}) or a function, got {type(rule).__name__}"
        )
    if module_type in _RULES and not replace:
        raise ValueError(f"{module_type.__name__} has a rule already; pass replace=True to replace it")
    _RULES[module_type] = ClassRule(named_rule(rule) if isinstance(rule, str) else rule, kind)


def unregister(module_type: type[nn.Module]) -> None:
    """Remove the rule of a module type; the built-in rules can be removed too.

    >>> class Mixer(nn.Linear):
    ...     pass
    >>> gradcent.register(Mixer, "columns")
    >>> gradcent.unregister(Mixer)  # the rule of nn.Linear applies again
    >>> model = Mixer(3, 5)
    >>> gradcent.explain(model).layout(model.weight).length
    3
    """
    if not isinstance(module_type, type):
        raise TypeError(f"unregister needs a module type, got {module_type!r}")
    if _RULES.pop(module_type, None) is None:
        raise ValueError(f"{module_type.__name__} has no rule to remove")


def find(module: nn.Module) -> ClassRule | None:
    """Return the rule for a module: that of the nearest class in its MRO."""
    for ancestor in type(module).__mro__:
        if ancestor in _RULES:
            return _RULES[ancestor]
        # transformers' Conv1D and its copies in nanoGPT-era code, known by name and attribute
        if ancestor.__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int):
            return ClassRule(_hf_conv1d, "linear")
        named = find_by_name(ancestor)
        if named is not None:
            return ClassRule(*named)
    return None


def named_rule(name: str) -> Rule:
    """Return a rule that gives every parameter with enough dims the layout called ``name``."""
    if name not in LAYOUT_NAMES:
        raise ValueError(f"no layout is called {name!r}; choose one of {', '.join(LAYOUT_NAMES)}")

    def rule(module: nn.Module, parameter: str, shape: tuple[int, ...]) -> Answer:
        if len(shape) >= MIN_DIMS[name]:
            return layout_named(name, shape)
        if len(shape) >= 2 and "bias" not in parameter:
            return Reason(ReasonCode.NOT_A_WEIGHT, f"too few dims for {name}")
        return no_vectors(parameter, shape)

    return rule


def _not_weight(module: nn.Module, name: str, what: str = "the weight") -> Reason:
    if "bias" in name:
        return Reason(ReasonCode.BIAS, "bias")
    return Reason(ReasonCode.NOT_A_WEIGHT, f"not {what} of its {type(module).__name__}")


def _linear(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name != "weight":
        return _not_weight(module, name)
    expected: tuple[Any, ...] = (module.out_features, module.in_features)
    return Layout.rows(shape) if shape == expected else _shape_mismatch(shape, expected)


def _bilinear(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name != "weight":
        return _not_weight(module, name)
    expected: tuple[Any, ...] = (module.out_features, module.in1_features, module.in2_features)
    return Layout.rows(shape) if shape == expected else _shape_mismatch(shape, expected)


def _conv(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name != "weight":
        return _not_weight(module, name)
    groups: int = module.groups  # type: ignore[assignment]
    kernel: tuple[int, ...] = tuple(module.kernel_size)  # type: ignore[arg-type]
    inputs: int = module.in_channels  # type: ignore[assignment]
    outputs: int = module.out_channels  # type: ignore[assignment]
    if module.transposed:
        expected = (inputs, outputs // groups, *kernel)
        return Layout.transposed(shape, groups) if shape == expected else _shape_mismatch(shape, expected)
    expected = (outputs, inputs // groups, *kernel)
    return Layout.rows(shape) if shape == expected else _shape_mismatch(shape, expected)


def _attention(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight") and len(shape) == 2:
        return Layout.rows(shape)
    return _not_weight(module, name, "a projection")


def _recurrent(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name.startswith("weight_") and len(shape) == 2:
        return Layout.rows(shape)
    return _not_weight(module, name, "a weight")


def _hf_conv1d(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name != "weight":
        return _not_weight(module, name)
    if len(shape) != 2 or shape[1] != module.nf:
        return _shape_mismatch(shape, ("in", module.nf))
    return Layout.columns(shape)


def _embedding(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    return Reason(ReasonCode.EMBEDDING, "embedding")


def _norm(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    code = ReasonCode.NORM_BIAS if "bias" in name else ReasonCode.NORM_SCALE
    return Reason(code, code.value)


def _shape_mismatch(shape: tuple[int, ...], expected: Sequence[object]) -> Reason:
    text = f"shape {tuple(shape)} is not the layer's ({', '.join(map(str, expected))}): packed or factored"
    return Reason(ReasonCode.SHAPE_MISMATCH, text)


_RULES: dict[type, ClassRule] = {
    nn.Linear: ClassRule(_linear, "linear"),
    nn.Bilinear: ClassRule(_bilinear, "linear"),
    nn.modules.conv._ConvNd: ClassRule(_conv, "conv"),
    nn.MultiheadAttention: ClassRule(_attention, "linear"),
    nn.RNNBase: ClassRule(_recurrent, "linear"),
    nn.RNNCellBase: ClassRule(_recurrent, "linear"),
    nn.Embedding: ClassRule(_embedding, None),
    nn.EmbeddingBag: ClassRule(_embedding, None),
    nn.modules.batchnorm._NormBase: ClassRule(_norm, None),
    nn.GroupNorm: ClassRule(_norm, None),
    nn.LayerNorm: ClassRule(_norm, None),
    nn.LocalResponseNorm: ClassRule(_norm, None),
    nn.RMSNorm: ClassRule(_norm, None),
}
