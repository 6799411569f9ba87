"""Which parameter of which module is made of weight vectors, and along which dims.

A rule answers for one parameter of one module: with its :class:`Layout`, or with the reason, in
words, why it is left alone. Rules are found by module type, subclasses count as their parent, and
:func:`register` adds rules for the user's own modules. Selection is never by a tensor's rank: that
is how other implementations come to alter norm scales, class tokens and position embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ..layout import Layout

Kind = Literal["conv", "linear"]
Answer = Layout | str
Rule = Callable[[nn.Module, str, tuple[int, ...]], Answer]


@dataclass(frozen=True, slots=True)
class Known:
    """A rule and what `layers=` counts its modules as (None: the rule never gives a layout)."""

    rule: Rule
    kind: Kind | None


def register(
    module_type: type[nn.Module], rule: Rule | str, *, kind: Kind = "linear", replace: bool = False
) -> None:
    """Teach gradcent a module type of your own.

    ``rule`` is the name of a layout ("rows", "columns", "stacked_rows", "stacked_columns") for every
    parameter of the module with dims enough for it, or a function ``(module, name, shape) -> Layout | str``
    in which a string is the reason for leaving the parameter alone. ``kind`` is what
    ``layers="conv"|"linear"`` counts it as.
    """
    if not (isinstance(module_type, type) and issubclass(module_type, nn.Module)):
        raise TypeError(f"register needs a subclass of nn.Module, got {module_type!r}")
    if kind not in ("conv", "linear"):
        raise ValueError(f'kind must be "conv" or "linear", got {kind!r}')
    if not isinstance(rule, str) and not callable(rule):
        raise TypeError(
            f"rule must be the name of a layout ({', '.join(LAYOUTS)}) or a function, got {type(rule).__name__}"
        )
    if module_type in _RULES and not replace:
        raise ValueError(f"{module_type.__name__} has a rule already; pass replace=True to replace it")
    _RULES[module_type] = Known(named_rule(rule) if isinstance(rule, str) else rule, kind)


def unregister(module_type: type[nn.Module]) -> None:
    """Forget the rule of a module type (those that gradcent brings along included)."""
    if not isinstance(module_type, type):
        raise TypeError(f"unregister needs a module type, got {module_type!r}")
    if _RULES.pop(module_type, None) is None:
        raise ValueError(f"{module_type.__name__} has no rule to forget")


def find(module: nn.Module) -> Known | None:
    """Return the rule for a module: that of the nearest class in its line of parents."""
    for ancestor in type(module).__mro__:
        if ancestor in _RULES:
            return _RULES[ancestor]
        if ancestor.__name__ == "Conv1D" and ancestor.__module__.startswith("transformers."):
            return Known(_hf_conv1d, "linear")  # known by name, so that transformers is not imported
    return None


LAYOUTS: dict[str, Callable[[Sequence[int]], Layout]] = {
    "rows": Layout.rows,
    "columns": Layout.columns,
    "stacked_rows": Layout.stacked_rows,
    "stacked_columns": Layout.stacked_columns,
}
_DIMS = {"rows": 2, "columns": 2, "stacked_rows": 3, "stacked_columns": 3}


def layout_named(name: str, shape: Sequence[int]) -> Layout:
    """Return the layout called ``name`` for a tensor of that shape."""
    if name not in LAYOUTS:
        raise ValueError(f"no layout is called {name!r}; choose one of {', '.join(LAYOUTS)}")
    if len(shape) < _DIMS[name]:
        raise ValueError(f'layout "{name}" needs {_DIMS[name]} dims or more, got shape {tuple(shape)}')
    return LAYOUTS[name](shape)


def overridden(value: Layout | str | None, shape: tuple[int, ...], pattern: str, name: str) -> Layout | str:
    """Return the layout that an override chooses for a parameter, or the reason why it is left alone."""
    if value is None:
        return f"left alone by override {pattern!r}"
    try:
        layout = layout_named(value, shape) if isinstance(value, str) else value
        layout.split(shape)
    except ValueError as error:
        raise ValueError(f"override {pattern!r} for parameter {name} of shape {shape}: {error}") from None
    return layout


def named_rule(name: str) -> Rule:
    """Return a rule that gives every parameter of two dims or more the layout called ``name``."""
    if name not in LAYOUTS:
        raise ValueError(f"no layout is called {name!r}; choose one of {', '.join(LAYOUTS)}")

    def rule(module: nn.Module, parameter: str, shape: tuple[int, ...]) -> Answer:
        if len(shape) >= _DIMS[name]:
            return layout_named(name, shape)
        few = len(shape) >= 2 and "bias" not in parameter
        return f"too few dims for {name}" if few else no_vectors(parameter, shape)

    return rule


def no_vectors(parameter: str, shape: tuple[int, ...]) -> str:
    """Return why a parameter of fewer than two dims is no list of weight vectors."""
    if "bias" in parameter:
        return "bias"
    return "a single vector, not a list of weight vectors" if shape else "a single number"


def _linear(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name != "weight":
        return "bias" if name == "bias" else f"not the weight of its {type(module).__name__}"
    expected: tuple[Any, ...] = (module.out_features, module.in_features)
    return Layout.rows(shape) if shape == expected else _misshapen(shape, expected)


def _bilinear(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name != "weight":
        return "bias" if name == "bias" else f"not the weight of its {type(module).__name__}"
    expected: tuple[Any, ...] = (module.out_features, module.in1_features, module.in2_features)
    return Layout.rows(shape) if shape == expected else _misshapen(shape, expected)


def _conv(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name != "weight":
        return "bias" if name == "bias" else f"not the weight of its {type(module).__name__}"
    groups: int = module.groups  # type: ignore[assignment]
    kernel: tuple[int, ...] = tuple(module.kernel_size)  # type: ignore[arg-type]
    inputs: int = module.in_channels  # type: ignore[assignment]
    outputs: int = module.out_channels  # type: ignore[assignment]
    if module.transposed:
        expected = (inputs, outputs // groups, *kernel)
        return Layout.transposed(shape, groups) if shape == expected else _misshapen(shape, expected)
    expected = (outputs, inputs // groups, *kernel)
    return Layout.rows(shape) if shape == expected else _misshapen(shape, expected)


def _attention(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight") and len(shape) == 2:
        return Layout.rows(shape)
    return "bias" if "bias" in name else f"not a projection of its {type(module).__name__}"


def _recurrent(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name.startswith("weight_") and len(shape) == 2:
        return Layout.rows(shape)
    return "bias" if "bias" in name else f"not a weight of its {type(module).__name__}"


def _hf_conv1d(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    if name != "weight":
        return "bias" if name == "bias" else f"not the weight of its {type(module).__name__}"
    if len(shape) != 2 or shape[1] != module.nf:
        return _misshapen(shape, ("in", module.nf))
    return Layout.columns(shape)


def _embedding(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    return EMBEDDING


def _norm(module: nn.Module, name: str, shape: tuple[int, ...]) -> Answer:
    return "bias of a normalization" if "bias" in name else "scale of a normalization"


def _misshapen(shape: tuple[int, ...], expected: Sequence[object]) -> str:
    return f"shape {tuple(shape)} is not the layer's ({', '.join(map(str, expected))}): packed or factored"


EMBEDDING = "embedding"

_RULES: dict[type, Known] = {
    nn.Linear: Known(_linear, "linear"),
    nn.Bilinear: Known(_bilinear, "linear"),
    nn.modules.conv._ConvNd: Known(_conv, "conv"),
    nn.MultiheadAttention: Known(_attention, "linear"),
    nn.RNNBase: Known(_recurrent, "linear"),
    nn.RNNCellBase: Known(_recurrent, "linear"),
    nn.Embedding: Known(_embedding, None),
    nn.EmbeddingBag: Known(_embedding, None),
    nn.modules.batchnorm._NormBase: Known(_norm, None),
    nn.GroupNorm: Known(_norm, None),
    nn.LayerNorm: Known(_norm, None),
    nn.LocalResponseNorm: Known(_norm, None),
    nn.RMSNorm: Known(_norm, None),
}
