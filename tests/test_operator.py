"""Φ itself: dtypes, strides, sizes, exact zeros, overflow; against `v - v.mean()` vector by vector in float64."""

from __future__ import annotations

import pytest
import torch

import gradcent
from gradcent import Layout, centralize, centralize_, kernels
from gradcent.operator import restore_means_, vector_means

LAYOUTS = [
    ((6, 5), Layout.rows((6, 5))),
    ((6, 4, 3, 2), Layout.rows((6, 4, 3, 2))),
    ((6, 5), Layout.columns((6, 5))),
    ((6, 4, 3, 2), Layout.transposed((6, 4, 3, 2), groups=1)),
    ((6, 4, 3, 2), Layout.transposed((6, 4, 3, 2), groups=2)),
    ((6, 4, 3, 2), Layout.transposed((6, 4, 3, 2), groups=6)),
    ((3, 4, 5), Layout.stacked_rows((3, 4, 5))),
    ((3, 4, 5), Layout.stacked_columns((3, 4, 5))),
    ((1, 7), Layout.rows((1, 7))),
    ((4, 1, 3, 3), Layout.rows((4, 1, 3, 3))),
]
EVERY = pytest.mark.parametrize(
    ("shape", "layout"), LAYOUTS, ids=[f"{shape}-{layout.shape}" for shape, layout in LAYOUTS]
)


def expected(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The definition, with a loop over weight vectors and nothing clever."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    view = wide.reshape(layout.shape).clone()
    for batch in range(layout.batch):
        for vector in range(layout.vectors):
            view[batch, :, vector, :] -= view[batch, :, vector, :].mean()
    return view.reshape(tensor.shape)


@EVERY
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 1e-15),
        (torch.float32, 3e-7),
        (torch.bfloat16, 2**-8),
        (torch.float16, 2**-11),
        (torch.complex64, 5e-7),
        (torch.complex128, 1e-15),
    ],
)
def test_every_layout_in_every_dtype(shape, layout, dtype, tolerance) -> None:
    tensor = torch.randn(shape, dtype=torch.float32 if dtype.itemsize < 4 else dtype).to(dtype)
    result = centralize(tensor, layout)
    assert result.dtype is dtype
    assert result.shape == tensor.shape
    truth = expected(tensor, layout)
    # half types: the float64 result rounded once, but for the last bit
    bound = tolerance * truth.abs().clamp_min(1.0) * 2
    assert bool(((result.to(truth.dtype) - truth).abs() <= bound).all())


@EVERY
def test_decay_goes_into_the_mean(shape, layout) -> None:
    gradient, weight = torch.randn(2, *shape, dtype=torch.float64)
    result = centralize(gradient, layout, weight=weight, decay=0.3)
    torch.testing.assert_close(
        result + 0.3 * weight, expected(gradient + 0.3 * weight, layout), rtol=0, atol=1e-14
    )
    assert torch.equal(centralize(gradient, layout, weight=weight), centralize(gradient, layout))


@pytest.mark.parametrize("vectors", [1, 4])
def test_decay_with_vectors_of_one_element(vectors: int) -> None:
    """By hand such a layout may be used; each element is a vector of its own."""
    gradient, weight = torch.randn(2, vectors, 1, dtype=torch.float64)
    layout = Layout.rows(gradient.shape)
    torch.testing.assert_close(centralize(gradient, layout, weight=weight, decay=0.3), -0.3 * weight)
    assert bool((centralize(gradient, layout) == 0).all())


@EVERY
def test_the_numbers_of_a_layout(shape, layout) -> None:
    assert layout.numel == torch.Size(shape).numel()
    assert layout.count * layout.length == layout.numel


@EVERY
def test_non_contiguous_tensors(shape, layout) -> None:
    base = torch.randn([2 * size for size in shape], dtype=torch.float64)
    strided = base[tuple(slice(None, None, 2) for _ in shape)]
    flipped = torch.randn(shape[::-1], dtype=torch.float64).permute(*range(len(shape) - 1, -1, -1))
    for tensor in (strided, flipped):
        torch.testing.assert_close(centralize(tensor, layout), expected(tensor, layout), rtol=0, atol=1e-14)
        copy = tensor.clone(memory_format=torch.preserve_format)
        want = expected(copy, layout)
        assert centralize_(copy, layout) is copy
        torch.testing.assert_close(copy, want, rtol=0, atol=1e-14)


@pytest.mark.parametrize("layout", [Layout.rows((8, 4, 3, 3)), Layout.transposed((8, 4, 3, 3), groups=2)])
def test_channels_last_keeps_its_strides(layout: Layout) -> None:
    tensor = torch.randn(8, 4, 3, 3, dtype=torch.float64).to(memory_format=torch.channels_last)
    result = centralize(tensor, layout)
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, expected(tensor, layout).contiguous(), rtol=0, atol=1e-14)


def test_expanded_gradients() -> None:
    """`sum().backward()` makes gradients whose elements share one place."""
    tensor = torch.tensor([[1.0], [2.0]]).expand(2, 5)
    assert bool((centralize(tensor, Layout.rows((2, 5))) == 0).all())
    model = torch.nn.Linear(5, 2, bias=False)
    model.weight.grad = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]).expand(2, 5)
    gradcent.centralize_gradients_(model)
    assert model.weight.grad.tolist() == [[-3, -2, -1, 0, 6]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,), (3, 0, 2)])
def test_zero_size(shape, dtype) -> None:
    tensor = torch.empty(shape, dtype=dtype)
    layout = Layout(1, 1, shape[0], int(torch.tensor(shape[1:]).prod()))
    assert centralize(tensor, layout).shape == tensor.shape
    assert centralize_(tensor, layout) is tensor


@EVERY
def test_meta_tensors(shape, layout) -> None:
    result = centralize(torch.empty(shape, device="meta", dtype=torch.bfloat16), layout)
    assert result.is_meta
    assert result.shape == shape
    assert result.dtype is torch.bfloat16
    gradcent.explain(torch.nn.Linear(4, 3, device="meta"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [2, 3, 7, 9, 27, 100, 147, 577, 1000, 4608])
def test_constant_rows_come_out_exactly_zero(dtype, length) -> None:
    """Adam would turn a residue of 1e-7 into full steps; naive centring leaves one in 12 to 78 % of such rows."""
    values = torch.cat(
        [torch.randn(200), 10.0 ** torch.arange(-4.0, 4.0), -(3.0 ** torch.arange(-4.0, 4.0))]
    ).to(dtype)
    rows = values[:, None].expand(len(values), length).contiguous()
    assert bool((centralize(rows, Layout.rows(rows.shape)) == 0).all())
    columns = rows.T.contiguous()
    assert bool((centralize(columns, Layout.columns(columns.shape)) == 0).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_near_the_largest_number_do_not_overflow(dtype) -> None:
    largest = torch.finfo(dtype).max
    row = torch.tensor([[largest, largest, largest / 2, largest / 2]], dtype=dtype)
    result = centralize(row, Layout.rows((1, 4)))
    want = torch.tensor([[0.25, 0.25, -0.25, -0.25]], dtype=torch.float64)
    mapped = torch.func.vmap(lambda each: centralize(each, Layout.rows((1, 4))))(row[None])[0]
    for each in (result, mapped):
        assert bool(each.isfinite().all())
        torch.testing.assert_close(each.double() / largest, want, rtol=0, atol=torch.finfo(dtype).eps)


@pytest.mark.filterwarnings("ignore")  # Dynamo's own, about lru_cache
def test_centralize_compiles_into_one_graph() -> None:
    tensor, layout = torch.randn(4, 5), Layout.rows((4, 5))
    compiled = torch.compile(lambda each: centralize(each, layout), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tensor), centralize(tensor, layout))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", ["reference", "foreach", "native"])
def test_residues_near_the_largest_number_do_not_overflow(dtype, kernel) -> None:
    """Their mean is 0, but on the way to it the sum is inf, and inf − inf is nan."""
    if kernel == "native" and not kernels.native.available():
        pytest.skip(kernels.native.reason())
    largest = torch.full((1, 512), torch.finfo(dtype).max, dtype=dtype)
    row = torch.cat([largest, -largest], dim=1)
    with torch.no_grad():
        result = kernels.centralized([row], [Layout.rows(row.shape)], [row], decay=0.0, kernel=kernel)[0]
    torch.testing.assert_close(result, row, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_accumulated_in_float32_and_rounded_once(dtype) -> None:
    """4,096 numbers near 8: a sum in half precision would stall or overflow; the mean here is exact to float32."""
    tensor = (8 + torch.randn(3, 4096)).to(dtype)
    truth = expected(tensor, Layout.rows((3, 4096)))
    result = centralize(tensor, Layout.rows((3, 4096)))
    off = result != truth.to(dtype)
    assert float(off.float().mean()) < 0.01  # a float32 mean may tip a tie, nothing more
    worst = (result.double() - truth).abs().max()
    assert float(worst) <= torch.finfo(dtype).eps * float(truth.abs().max())


def test_the_result_does_not_depend_on_the_number_of_threads() -> None:
    tensor = torch.randn(64, 70_000)
    layouts = (Layout.rows(tensor.shape), Layout.columns(tensor.shape))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([centralize(tensor, layout) for layout in layouts])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32])
def test_means_are_restored(shape, layout, dtype) -> None:
    before, after = torch.randn(2, *shape, dtype=dtype)
    want = before + expected(after - before, layout).to(dtype)
    means = vector_means(before, layout)
    assert restore_means_(after, layout, means) is after
    torch.testing.assert_close(after, want, rtol=0, atol=1e-6 if dtype is torch.float32 else 1e-14)


def test_what_is_refused() -> None:
    rows = Layout.rows((2, 3))
    with pytest.raises(TypeError, match="no means"):
        centralize(torch.ones(2, 3, dtype=torch.int64), rows)
    with pytest.raises(TypeError, match="no means"):
        vector_means(torch.ones(2, 3, dtype=torch.int64), rows)
    with pytest.raises(TypeError, match="sparse"):
        centralize(torch.ones(2, 3).to_sparse(), rows)
    with pytest.raises(ValueError, match="6 elements"):
        centralize(torch.ones(2, 4), rows)
    with pytest.raises(ValueError, match="does not fall on the dims"):
        centralize(torch.ones(4, 6), Layout(1, 1, 6, 4))
    with pytest.raises(ValueError, match="weight has shape"):
        centralize(torch.ones(2, 3), rows, weight=torch.ones(3, 2), decay=1.0)
    with pytest.raises(TypeError, match=r"Layout"):
        centralize(torch.ones(2, 3), (1, 1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="non-negative"):
        Layout(1, 1, -2, 3)
    with pytest.raises(ValueError, match="do not divide"):
        Layout.transposed((5, 2, 3), groups=2)
