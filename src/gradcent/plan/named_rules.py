"""Class rules for layers of other packages, known by name so that those packages are not imported.

Tracing finds the same layouts; these rules spare the user an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..layout import Layout
from .entry import Answer, Reason, ReasonCode
from .traced import Kind

NamedRule = Callable[[Any, str, tuple[int, ...]], Answer]


def find_by_name(module_type: type) -> tuple[NamedRule, Kind] | None:
    """Return the rule for a class of another package, None if there is none."""
    package, name = module_type.__module__.split(".")[0], module_type.__name__
    if package == "transformers":
        if name.endswith("Experts"):
            return _experts, "linear"
        if name.endswith(("TopKRouter", "TopkRouter")):
            return _router, "linear"
    if package == "torch_geometric" and name in ("Linear", "HeteroLinear"):
        return _graph_linear, "linear"
    return None


def _experts(module: Any, name: str, shape: tuple[int, ...]) -> Answer:
    """Stacked experts of transformers: (E, out, in), or (E, in, out) where ``is_transposed``."""
    hidden = getattr(module, "hidden_dim", getattr(module, "hidden_size", None))
    if "bias" in name:
        return Reason(ReasonCode.BIAS, "bias")
    reads_hidden = {"gate_up_proj": True, "gate_proj": True, "up_proj": True, "down_proj": False}.get(name)
    if reads_hidden is None or len(shape) != 3:
        return _unknown(module, name)
    # Llama 4's class has no such attribute.
    transposed = getattr(module, "is_transposed", type(module).__name__ == "Llama4TextExperts")
    hidden_dim = 1 if reads_hidden == transposed else 2
    if shape[hidden_dim] != hidden:
        return _unknown(module, name)
    return Layout.stacked_columns(shape) if transposed else Layout.stacked_rows(shape)


def _router(module: Any, name: str, shape: tuple[int, ...]) -> Answer:
    """The routers of transformers call F.linear with a weight (experts, hidden)."""
    if "bias" in name:
        return Reason(ReasonCode.BIAS, "bias")
    hidden = getattr(module, "hidden_dim", getattr(module, "hidden_size", None))
    if name != "weight" or len(shape) != 2 or shape[1] != hidden:
        return _unknown(module, name)
    return Layout.rows(shape)


def _graph_linear(module: Any, name: str, shape: tuple[int, ...]) -> Answer:
    """PyTorch Geometric's Linear (out, in) and HeteroLinear (types, in, out)."""
    if name != "weight":
        return Reason(ReasonCode.BIAS, "bias") if name == "bias" else _unknown(module, name)
    inputs, outputs = module.in_channels, module.out_channels
    if shape == (outputs, inputs):
        return Layout.rows(shape)
    if len(shape) == 3 and shape[1:] == (inputs, outputs):
        return Layout.stacked_columns(shape)
    return _unknown(module, name)


def _unknown(module: Any, name: str) -> Reason:
    text = f"{name} of {type(module).__name__}, which gradcent does not know in this shape"
    return Reason(ReasonCode.UNKNOWN_MODULE, text)
