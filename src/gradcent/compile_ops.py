"""Φ as custom torch operators, so that torch.compile captures a step with GC as one graph.

Inductor's CPU backend raises a KeyError while it fuses the plain form for convolutions with coupled decay (add λw,
subtract the mean, update momentum in place). A custom operator is opaque to it, and runs the same code in compiled
and in eager steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .layout import Layout
from .operator import centralize, restore_means_, vector_means

_torch: Any = torch.library  # untyped
_library = _torch.Library("gradcent", "DEF")
_library.define(
    "centralize(Tensor gradient, Tensor? weight, float decay, Tensor? scale, int[] layout) -> Tensor"
)
_library.define("vector_means(Tensor weight, int[] layout) -> Tensor")
_library.define("restore_means_(Tensor(a!) weight, Tensor means, int[] layout) -> ()")


def _centralize(
    gradient: Tensor, weight: Tensor | None, decay: float, scale: Tensor | None, layout: list[int]
) -> Tensor:
    strength = decay if scale is None else decay * scale
    return centralize(gradient, Layout(*layout), weight=weight, decay=strength)


def _vector_means(weight: Tensor, layout: list[int]) -> Tensor:
    return vector_means(weight, Layout(*layout))


def _restore_means_(weight: Tensor, means: Tensor, layout: list[int]) -> None:
    restore_means_(weight, Layout(*layout), means)


def _centralize_fake(
    gradient: Tensor, weight: Tensor | None, decay: float, scale: Tensor | None, layout: list[int]
) -> Tensor:
    return torch.empty_like(gradient)


def _vector_means_fake(weight: Tensor, layout: list[int]) -> Tensor:
    return _vector_means(weight, [int(size) for size in layout])


def _restore_means_fake(weight: Tensor, means: Tensor, layout: list[int]) -> None:
    return None


for _name, _function, _fake in (
    ("centralize", _centralize, _centralize_fake),
    ("vector_means", _vector_means, _vector_means_fake),
    ("restore_means_", _restore_means_, _restore_means_fake),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    _torch.register_fake(f"gradcent::{_name}", _fake)
