"""Half precision: every sum in float32 or wider and every result rounded once, against float64 done here.

The second centring pass repairs nearly all that a mean in half precision spoils, so that results which are
"close" show nothing. What tells them apart is counting: the float64 result rounded once to the half type is what
must come out, element for element, but for ties that a float32 mean may tip.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import gradcent
from gradcent import Layout, centralize, kernels
from gradcent.operator import restore_means_, vector_means
from optimizer_cases import Homemade

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
PATHS = pytest.mark.parametrize("path", ["reference", "foreach", "native"])
# one for each way the native kernels read memory: short rows, long rows, panels of columns, many columns
SHAPES = pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((40, 27), Layout.rows((40, 27))),
        ((8, 5000), Layout.rows((8, 5000))),
        ((300, 40), Layout.columns((300, 40))),
        ((2000, 70), Layout.columns((2000, 70))),
        ((32, 12, 3, 3), Layout.transposed((32, 12, 3, 3), groups=2)),
    ],
    ids=["short-rows", "long-rows", "panel", "columns", "grouped-transposed"],
)


def means64(tensor: Tensor, layout: Layout) -> Tensor:
    """The mean of each weight vector by the definition, spread over the tensor's shape."""
    view = tensor.double().reshape(layout.shape)
    return view.mean((1, 3), keepdim=True).expand(layout.shape).reshape(tensor.shape)


def rounded_once(result: Tensor, truth: Tensor) -> None:
    """Assert that `result` is the float64 truth rounded to its dtype, but for ties."""
    want = truth.to(result.dtype)
    off = float((result != want).float().mean())
    assert off < 0.01, f"{100 * off:.1f} % of the elements were rounded more than once"
    room = torch.finfo(result.dtype).eps * truth.abs() + torch.finfo(result.dtype).tiny
    assert bool(((result.double() - truth).abs() <= room).all())


def centralized(path: str, gradient: Tensor, layout: Layout, weight: Tensor, decay: float) -> Tensor:
    if path == "native" and not kernels.native.available():
        pytest.skip(kernels.native.reason())
    with torch.no_grad():
        both = kernels.centralized([gradient] * 2, [layout] * 2, [weight] * 2, decay=decay, kernel=path)
    assert torch.equal(both[0], both[1])
    return both[0]


@HALVES
@PATHS
@SHAPES
def test_each_element_is_rounded_once(shape, layout, path, dtype) -> None:
    """A mean that half precision cannot hold, and elements fine enough to feel it."""
    gradient = (torch.randn(shape) + 0.3).to(dtype)
    result = centralized(path, gradient, layout, gradient, 0.0)
    assert result.dtype is dtype
    rounded_once(result, gradient.double() - means64(gradient, layout))


@HALVES
@PATHS
@SHAPES
def test_a_large_common_offset_leaves_no_trace(shape, layout, path, dtype) -> None:
    """Numbers near 200: their mean in half precision is off by more than what distinguishes the results."""
    gradient = (200 + 8 * torch.randn(shape)).to(dtype)
    result = centralized(path, gradient, layout, gradient, 0.0)
    rounded_once(result, gradient.double() - means64(gradient, layout))


@PATHS
@SHAPES
def test_sums_beyond_float16(shape, layout, path) -> None:
    """The largest float16 is 65504: the sum of any two of these is inf, their mean is not."""
    gradient = (50_000 + 2_000 * torch.randn(shape)).to(torch.float16)
    result = centralized(path, gradient, layout, gradient, 0.0)
    assert bool(result.isfinite().all())
    rounded_once(result, gradient.double() - means64(gradient, layout))


@PATHS
@SHAPES
def test_the_smallest_numbers_of_float16(shape, layout, path) -> None:
    """Subnormal gradients, as a loss scale that is too small gives: half an element is not yet nothing."""
    tiny = 2.0**-24  # the smallest float16
    gradient = (tiny * torch.randint(-40, 60, shape)).to(torch.float16)
    result = centralized(path, gradient, layout, gradient, 0.0)
    truth = gradient.double() - means64(gradient, layout)
    assert float((result.double() - truth).abs().max()) <= 0.5001 * tiny


@HALVES
@PATHS
@SHAPES
def test_coupled_decay_in_half(shape, layout, path, dtype) -> None:
    """g − mean(g + λw) where the mean of w is known to half precision only to a few parts in a thousand."""
    weight = (100.3 + torch.randn(shape)).to(dtype)
    gradient = (0.1 * torch.randn(shape)).to(dtype)
    result = centralized(path, gradient, layout, weight, 0.01)
    rounded_once(result, gradient.double() - means64(gradient, layout) - 0.01 * means64(weight, layout))


@HALVES
@SHAPES
def test_means_are_float32(shape, layout, dtype) -> None:
    tensor = (200 + 8 * torch.randn(shape)).to(dtype)
    means = vector_means(tensor, layout)
    assert means.dtype is torch.float32
    truth = means64(tensor, layout).reshape(layout.shape)[:, :1, :, :1].flatten()
    torch.testing.assert_close(means.flatten().double(), truth, rtol=1e-6, atol=0)


@HALVES
@SHAPES
def test_restored_means_are_rounded_once(shape, layout, dtype) -> None:
    """`at="update"`: the change of the mean, itself no half number, goes out of each element in one rounding."""
    before = torch.randn(shape).to(dtype)
    after = (before.float() + 1.2345 + 0.1 * torch.randn(shape)).to(dtype)
    truth = after.double() - (means64(after, layout) - means64(before, layout))
    restore_means_(after, layout, vector_means(before, layout))
    rounded_once(after, truth)


@HALVES
@pytest.mark.parametrize("how", ["reference", "foreach", "native", "hooks"])
def test_a_step_at_the_update_in_half(how, dtype) -> None:
    """Plain SGD with steps that nearly all go into the mean: what is left is the projected change, rounded once."""
    model = nn.Linear(200, 16, bias=False, dtype=dtype)
    layout = Layout.rows(model.weight.shape)
    before = model.weight.detach().clone()
    model.weight.grad = (1.7 + 0.1 * torch.randn(16, 200)).to(dtype)
    twin = copy.deepcopy(model)
    twin.weight.grad = model.weight.grad.clone()

    def plain(each: nn.Module) -> torch.optim.Optimizer:
        if how == "hooks":
            return Homemade(each.parameters(), lr=0.625)
        return torch.optim.SGD(each.parameters(), lr=0.625, foreach=how == "foreach" or None)

    gradcent.attach(plain(model), model, at="update", kernel="auto" if how == "hooks" else how).step()
    if how == "native":  # knows the change before it is rounded
        change = -0.625 * model.weight.grad.double()
        truth = before.double() + change - means64(change, layout)
    else:
        plain(twin).step()
        truth = twin.weight.detach().double() - (means64(twin.weight, layout) - means64(before, layout))
    rounded_once(model.weight.detach(), truth)


@HALVES
def test_sgd_with_coupled_decay_in_half(dtype) -> None:
    """The whole native step, P(g + λw) with one rounding of the weight."""
    if not kernels.native.available():
        pytest.skip(kernels.native.reason())
    model = nn.Linear(300, 16, bias=False, dtype=dtype)
    layout = Layout.rows(model.weight.shape)
    with torch.no_grad():
        model.weight.add_(0.7)
    before = model.weight.detach().double()
    model.weight.grad = (3.1 + torch.randn(16, 300)).to(dtype)
    optimizer = gradcent.optim.SGD(model.parameters(), lr=0.25, weight_decay=0.5, model=model)
    optimizer.step()
    x = model.weight.grad.double() + 0.5 * before
    rounded_once(model.weight.detach(), before - 0.25 * (x - means64(x, layout)))


@HALVES
def test_no_type_is_given_back_in_another(dtype) -> None:
    layout = Layout.rows((4, 50))
    for wide in (torch.float32, torch.float64):
        assert vector_means(torch.ones(4, 50, dtype=wide), layout).dtype is wide
        assert centralize(torch.ones(4, 50, dtype=wide), layout).dtype is wide
    assert centralize(torch.ones(4, 50, dtype=dtype), layout).dtype is dtype
