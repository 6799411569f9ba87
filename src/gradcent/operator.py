"""Φ, the operator of Eq. 1 and 2: remove from the gradient of each weight vector its mean.

This is the reference implementation for plain tensors. It follows the paper's equations, and every faster
implementation is tested against it. With a weight and a decay it returns g − mean(g + λw): an optimizer that adds λw
to this gradient computes exactly P(g + λw), the form of Section 3.4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .layout import Layout

_HALF = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def centralize(
    tensor: Tensor, layout: Layout, *, weight: Tensor | None = None, decay: float | Tensor = 0.0
) -> Tensor:
    """Return ``tensor`` minus the mean of each weight vector of ``tensor + decay * weight``.

    >>> centralize(torch.tensor([[1.0, 2.0, 6.0]]), Layout.rows((1, 3)))
    tensor([[-2., -1.,  3.]])
    """
    check(tensor, layout, weight)
    vectors, dims = _vectors(tensor, layout)
    dtype = vectors.dtype
    vectors = vectors.to(_HALF.get(dtype, dtype))
    shift = 0.0 if weight is None else decay * _mean(*_vectors(weight, layout))
    rest = vectors - (_mean(vectors, dims) + shift)
    if not dims:  # vectors of one element, or no elements at all; sum(()) would sum over all dims
        return _like(rest.to(dtype), tensor)
    # The first mean has a rounding error; a second pass removes what it left. A constant row then becomes exactly
    # 0: Adam would turn a residue of 1e-7 into a full step.
    residue = rest.sum(dims, keepdim=True) / layout.length + shift
    # The sum of the residues may overflow where they do not; such a row keeps the result of the first pass.
    rest = rest - torch.where(residue.isfinite(), residue, torch.zeros_like(residue))
    return _like(rest.to(dtype), tensor)


def vector_means(tensor: Tensor, layout: Layout) -> Tensor:
    """Return the mean of each weight vector, in float32 for half types, with averaged dims kept as 1.

    A complex tensor's means are pairs of real numbers in a last dim of size 2.
    """
    check(tensor, layout, None)
    return _mean(*_vectors(tensor, layout))


def restore_means_(tensor: Tensor, layout: Layout, means: Tensor) -> Tensor:
    """Shift each weight vector of ``tensor`` in place so that its mean becomes ``means``.

    After an optimizer step this projects the whole change of the weight, decay included, onto
    1ᵀΔw = 0: the form `at="update"`, which needs nothing but each vector's mean before and after.
    """
    vectors, dims = _vectors(tensor, layout)
    vectors.sub_(_mean(vectors, dims) - means)  # half types: computed in float32 and rounded once
    return tensor


def has_shared_elements(tensor: Tensor) -> bool:
    """Whether several elements may occupy one place in memory, as in an expanded gradient.

    A slice of a larger buffer has gaps, but no shared elements: it can be written in place.
    """
    extent = 0  # of the dims with smaller strides, in elements
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return tensor.numel() != 0
            extent += stride * (size - 1)
    return False


def _vectors(tensor: Tensor, layout: Layout) -> tuple[Tensor, tuple[int, ...]]:
    """View the tensor with its dims split at the layout's borders; return the dims that are averaged.

    A complex tensor is a pair of real ones: its mean is the mean of each part.
    """
    shape, dims = layout.split(tensor.shape)
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).view(*shape, 2), dims
    return tensor.view(shape), dims


def _like(vectors: Tensor, tensor: Tensor) -> Tensor:
    """Undo :func:`_vectors`."""
    if tensor.is_complex():
        return torch.view_as_complex(vectors.reshape(*tensor.shape, 2).contiguous())
    return vectors.reshape(tensor.shape)


def _mean(vectors: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Mean over ``dims``, kept; float32 for half types; no overflow where the mean itself has none."""
    length = math.prod([vectors.shape[dim] for dim in dims])  # a list: torch.compile traces no generator here
    accumulate = _HALF.get(vectors.dtype)
    if not dims:
        return vectors.to(accumulate) if accumulate else vectors
    mean = vectors.sum(dims, keepdim=True, dtype=accumulate) / length
    if accumulate is not None:
        return mean  # float32 has room for any sum of half-precision numbers
    if _can_read(mean) and _all_finite(mean):
        return mean
    # Rows near the largest float: divide first. A row that holds inf or nan stays inf or nan.
    return torch.where(mean.isfinite(), mean, (vectors / length).sum(dims, keepdim=True))


def _can_read(tensor: Tensor) -> bool:
    """Whether reading a value is cheap: on a GPU it would synchronize, in a traced graph it is impossible."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _all_finite(tensor: Tensor) -> bool:
    try:
        return bool(tensor.isfinite().all())
    except RuntimeError:  # under torch.func.vmap, which has no single answer
        return False


def check(tensor: Tensor, layout: Layout, weight: Tensor | None) -> None:
    """Raise if a tensor cannot be centralized with this layout and weight."""
    if not isinstance(layout, Layout):
        raise TypeError(
            f"centralize needs a gradcent.Layout, got {type(layout).__name__}; "
            "gradcent.explain(model) shows the layout of each parameter, Layout.rows(shape) is Linear's"
        )
    if not isinstance(tensor, Tensor):
        raise TypeError(f"centralize needs a tensor, got {type(tensor).__name__}")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"cannot centralize a tensor of dtype {tensor.dtype}: it has no means")
    if tensor.layout is not torch.strided:
        raise TypeError(
            "cannot centralize a sparse tensor: its weight vectors are not there; call .to_dense() first"
        )
    if weight is not None and weight.shape != tensor.shape:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, its gradient {tuple(tensor.shape)}")
