"""Recording and restoring the means of a list of weights, against the equation in float64."""

from __future__ import annotations

import pytest
import torch

from gradcent import Layout
from gradcent.kernels.means import ListMeans

SHAPES = [
    ((6, 5), Layout.rows((6, 5))),
    ((4, 3, 2, 2), Layout.rows((4, 3, 2, 2))),
    ((5, 7), Layout.columns((5, 7))),
    ((6, 4, 3), Layout.transposed((6, 4, 3), groups=2)),
    ((3, 4, 5), Layout.stacked_columns((3, 4, 5))),
]
LAYOUTS = [layout for _, layout in SHAPES]


def truth(before: torch.Tensor, after: torch.Tensor, layout: Layout) -> torch.Tensor:
    """w₀ + P(w₁ − w₀) in float64, with the view of the layout's definition."""
    change = (after.double() - before.double()).reshape(layout.shape)
    return before.double() + (change - change.mean((1, 3), keepdim=True)).reshape(before.shape)


def change(weights: list[torch.Tensor]) -> None:
    for weight in weights:
        weight.mul_(0.9).add_(torch.randn_like(weight))


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["auto", "foreach", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_change_is_projected(dtype: torch.dtype, kernel: str) -> None:
    weights = [torch.randn(shape).to(dtype) for shape, _ in SHAPES]
    weights[1] = weights[1].contiguous(memory_format=torch.channels_last)
    weights[2] = weights[2].t().contiguous().t()
    means = ListMeans(LAYOUTS, kernel)
    for _ in range(3):  # the buffers are reused
        before = [weight.clone() for weight in weights]
        means.record(weights)
        change(weights)
        wanted = [truth(*each) for each in zip(before, weights, LAYOUTS, strict=True)]
        means.restore_(weights)
        tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 0.04}[dtype]
        for weight, expected in zip(weights, wanted, strict=True):
            torch.testing.assert_close(weight.double(), expected, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_sums_that_overflow_where_means_do_not() -> None:
    large = torch.finfo(torch.float32).max / 2
    weights = [torch.full((2, 8), large), torch.randn(3, 4)]
    layouts = [Layout.rows((2, 8)), Layout.rows((3, 4))]
    before = [weight.clone() for weight in weights]
    means = ListMeans(layouts)
    means.record(weights)
    weights[0].mul_(0.5)
    weights[1].add_(1.0)
    means.restore_(weights)
    torch.testing.assert_close(weights, before)


@torch.no_grad()
def test_nan_stays_in_its_weight_vector() -> None:
    weight = torch.randn(3, 4)
    before = weight.clone()
    means = ListMeans([Layout.rows((3, 4))])
    means.record([weight])
    weight.add_(1.0)
    weight[1, 2] = float("nan")
    means.restore_([weight])
    torch.testing.assert_close(weight[[0, 2]], before[[0, 2]])
    assert weight[1].isnan().all()


@torch.no_grad()
def test_weights_may_change_dtype_and_shape_between_steps() -> None:
    means = ListMeans([Layout.rows((3, 4))])
    for weight in (torch.randn(3, 4), torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 2, 2)):
        before = weight.clone()
        means.record([weight])
        weight.add_(1.0)
        means.restore_([weight])
        torch.testing.assert_close(weight, before)


@torch.no_grad()
def test_foreach_is_obeyed_or_refused() -> None:
    weight = torch.randn(3, 4, dtype=torch.complex64)
    with pytest.raises(TypeError, match=r"kernel='foreach'.*complex64"):
        ListMeans([Layout.rows((3, 4))], "foreach").record([weight])
    before = weight.clone()
    means = ListMeans([Layout.rows((3, 4))])
    means.record([weight])
    weight.add_(1 + 2j)
    means.restore_([weight])
    torch.testing.assert_close(weight, before)
