"""The quantity of Theorem 4.2: how much centralizing lowers the largest curvature of the loss.

λmax(H) and λmax(PHP) by power iteration on Hessian-vector products. The products come from two calls of
torch.autograd.grad: the weights already live in the user's model, and a library such as curvlinops would need the
data as a list of batches and would add a dependency for these ten lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import gradcent

ITERATIONS = 20  # the ratio of the two values settles earlier than the vectors


def curvature_ratio(loss: Callable[[], Tensor], plan: gradcent.Plan, iterations: int = ITERATIONS) -> float:
    """Return λmax(H) / λmax(PHP) over the weights that the plan centralizes, for one batch's loss."""
    pairs = [
        (param, entry.layout)
        for param, entry in plan.named()
        if entry.centralized and entry.layout is not None
    ]
    params = [param for param, _ in pairs]
    with sdpa_kernel(SDPBackend.MATH):  # the other attention kernels cannot be differentiated twice
        value = loss()
    gradients = torch.autograd.grad(value, params, create_graph=True, allow_unused=True)
    used = [(p, g, layout) for (p, layout), g in zip(pairs, gradients, strict=True) if g is not None]
    if not used:
        raise RuntimeError("no gradient depends on the weights")
    weights, grads = [p for p, _, _ in used], [g for _, g, _ in used]

    def product(vectors: Sequence[Tensor]) -> list[Tensor]:
        results = torch.autograd.grad(grads, weights, list(vectors), retain_graph=True, allow_unused=True)
        return [torch.zeros_like(p) if r is None else r for p, r in zip(weights, results, strict=True)]

    def project(vectors: Sequence[Tensor]) -> list[Tensor]:
        return [gradcent.centralize(v, layout) for v, (_, _, layout) in zip(vectors, used, strict=True)]

    whole = _largest(product, weights, iterations, lambda vectors: list(vectors))
    inside = _largest(product, weights, iterations, project)
    if not inside > 0:
        raise RuntimeError("the curvature of the centralized directions is zero")
    # Both are lower bounds that grow with the iterations, and λmax(PHP) never exceeds λmax(H).
    return max(whole, inside) / inside


def _largest(
    product: Callable[[Sequence[Tensor]], list[Tensor]],
    weights: Sequence[Tensor],
    iterations: int,
    project: Callable[[Sequence[Tensor]], list[Tensor]],
) -> float:
    """Return the largest absolute eigenvalue of P·H·P by power iteration."""
    generator = torch.Generator().manual_seed(0)
    vectors = project([torch.randn(w.shape, generator=generator).to(w) for w in weights])
    value = 0.0
    for _ in range(iterations):
        norm = float(torch.stack([v.square().sum() for v in vectors]).sum().sqrt())
        if norm == 0:
            return 0.0
        vectors = [v / norm for v in vectors]
        vectors = project([v.detach() for v in product(vectors)])
        value = float(torch.stack([v.square().sum() for v in vectors]).sum().sqrt())
    return value
