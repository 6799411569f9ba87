"""Theorem 4.2 on real losses: centralizing never increases the norms of gradient and Hessian.

The Hessian is autograd's, of the cross-entropy of a convolutional network on digit images, in float64. The Hessian
that GC sees is the Jacobian of `centralize` applied to the gradient; it must be P H (and P H P on the hyperplane).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from gradcent import Layout, centralize

SHAPES = {"0.weight": (4, 1, 3, 3), "4.weight": (5, 36)}


@pytest.fixture(scope="module")
def problem():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)
    ).double()
    images = 0.5 + torch.rand(16, 1, 8, 8, dtype=torch.float64)  # with a mean, as images have
    labels = torch.randint(0, 5, (16,))
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(name):
        def loss(weight):
            output = functional_call(model, {**parameters, name: weight}, (images,))
            return nn.functional.cross_entropy(output, labels)

        return loss, parameters[name]

    return loss_of


def projection(shape: tuple[int, ...]) -> torch.Tensor:
    """P of the whole tensor: identity minus the average over each row's elements, written out."""
    rows, length = shape[0], torch.Size(shape[1:]).numel()
    block = torch.eye(length, dtype=torch.float64) - torch.full(
        (length, length), 1 / length, dtype=torch.float64
    )
    return torch.block_diag(*[block] * rows)


@pytest.mark.parametrize("name", SHAPES)
def test_norms_of_gradient_and_hessian_do_not_grow(problem, name):
    loss, weight = problem(name)
    assert tuple(weight.shape) == SHAPES[name]
    layout, size = Layout.rows(weight.shape), weight.numel()
    gradient = jacrev(loss)(weight)
    curvature = jacrev(jacrev(loss))(weight).reshape(size, size)
    assert torch.allclose(curvature, curvature.T, atol=1e-12)

    centralized = centralize(gradient, layout)
    seen = jacrev(lambda w: centralize(jacrev(loss)(w), layout))(weight).reshape(size, size)
    project = projection(weight.shape)
    assert torch.allclose(seen, project @ curvature, atol=1e-10)  # what GC sees is P H
    assert centralized.norm() <= gradient.norm() * (1 + 1e-12)
    assert torch.linalg.matrix_norm(seen, 2) <= torch.linalg.matrix_norm(curvature, 2) * (1 + 1e-12)

    # the removed part is exactly the norm's difference: ‖g‖² = ‖Pg‖² + ‖(1 − P)g‖²
    rest = gradient - centralized
    assert torch.allclose(gradient.norm() ** 2, centralized.norm() ** 2 + rest.norm() ** 2, rtol=1e-12)
    # and it is not nothing: a test on a loss whose gradient has no mean could not fail
    assert rest.norm() > 1e-3 * gradient.norm()
    # on the hyperplane, the largest eigenvalue is that of P H P, and not larger than H's
    inside = torch.linalg.eigvalsh(project @ curvature @ project)
    whole = torch.linalg.eigvalsh(curvature)
    assert inside.abs().max() <= whole.abs().max() * (1 + 1e-12)
