"""The native kernels against the equations in float64, over layouts, dtypes, strides and settings."""

import itertools

import kernel_equations as truth
import native_steps
import pytest
import torch
from kernel_equations import CASES, DTYPES, LONG, assert_close, project, tensors, wide
from torch.optim.adam import adam

from gradcent import centralize
from gradcent.kernels import native
from gradcent.layout import Layout

LAYOUTS = [layout for _, layout in CASES]

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason())


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_centralize(dtype, decay, threads):
    gradients, weights = tensors(dtype), tensors(dtype, seed=1)
    got = native.centralized(gradients, LAYOUTS, weights, decay)
    for g, w, out, layout in zip(gradients, weights, got, LAYOUTS, strict=True):
        x, plain = wide(g) + decay * wide(w), wide(g)
        assert_close(out, plain if layout is None else plain - (x - project(x, layout)), dtype)
        assert (out is g) == (layout is None)
    copies = [g.clone() for g in gradients]
    native.centralize_(copies, LAYOUTS, weights, decay)
    for copy, out in zip(copies, got, strict=True):
        assert torch.equal(copy, out)


SGD_SETTINGS = [
    dict(momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, decoupled=False, maximize=False),
    dict(momentum=0.9, dampening=0.0, nesterov=False, weight_decay=0.1, decoupled=False, maximize=False),
    dict(momentum=0.9, dampening=0.5, nesterov=False, weight_decay=0.1, decoupled=True, maximize=True),
    dict(momentum=0.9, dampening=0.0, nesterov=True, weight_decay=0.1, decoupled=False, maximize=True),
    dict(momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.1, decoupled=True, maximize=False),
]


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", SGD_SETTINGS)
def test_sgd(dtype, setting, at):
    params = tensors(dtype)
    truths = [(wide(p), None) for p in params]
    buffers = [None] * len(params)
    for step in range(2):
        grads = tensors(dtype, seed=10 + step)
        native_steps.sgd(params, grads, buffers, LAYOUTS, lr=0.1, at=at, **setting)
        for i, (g, layout) in enumerate(zip(grads, LAYOUTS, strict=True)):
            truths[i] = truth.sgd(*truths[i][:1], wide(g), truths[i][1], layout, lr=0.1, at=at, **setting)
            assert_close(params[i], truths[i][0], dtype, "weight")
            if setting["momentum"]:
                assert_close(buffers[i], truths[i][1], dtype, "momentum")
            # half precision rounds the state every step: go on from what is there
            truths[i] = (wide(params[i]), None if buffers[i] is None else wide(buffers[i]))


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("decoupled", "maximize"), [(False, False), (True, False), (True, True)])
def test_adam(dtype, decoupled, maximize, at):
    setting = dict(
        lr=0.01, beta1=0.9, beta2=0.99, eps=1e-2, weight_decay=0.1, decoupled=decoupled, maximize=maximize
    )
    params = tensors(dtype)
    m, v = ([torch.zeros_like(p) for p in params] for _ in range(2))
    steps = [torch.zeros(()) for _ in params]
    for step in range(2):
        grads = tensors(dtype, seed=10 + step)
        old = [(wide(w), wide(a), wide(b)) for w, a, b in zip(params, m, v, strict=True)]
        native_steps.adam(params, grads, m, v, steps, LAYOUTS, at=at, **setting)
        for i, (g, layout) in enumerate(zip(grads, LAYOUTS, strict=True)):
            w, a, b = old[i]
            expected = truth.adam(w, wide(g), a, b, step + 1, layout, at=at, **setting)
            for got, wanted, what in zip((params[i], m[i], v[i]), expected, ("w", "m", "v"), strict=True):
                assert_close(got, wanted, dtype, what)
            assert steps[i].item() == step + 1


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("decoupled", "maximize"), [(False, False), (True, True)])
def test_adagrad(dtype, decoupled, maximize, at):
    setting = dict(lr=0.1, lr_decay=0.1, eps=1e-2, weight_decay=0.1, decoupled=decoupled, maximize=maximize)
    params = tensors(dtype)
    sums = [torch.full_like(p, 0.1) for p in params]
    steps = [torch.zeros(()) for _ in params]
    for step in range(2):
        grads = tensors(dtype, seed=10 + step)
        old = [(wide(w), wide(s)) for w, s in zip(params, sums, strict=True)]
        native_steps.adagrad(params, grads, sums, steps, LAYOUTS, at=at, **setting)
        for i, (g, layout) in enumerate(zip(grads, LAYOUTS, strict=True)):
            expected = truth.adagrad(old[i][0], wide(g), old[i][1], step + 1, layout, at=at, **setting)
            assert_close(params[i], expected[0], dtype, "w")
            assert_close(sums[i], expected[1], dtype, "sum")


def test_decay_left_out_of_the_projection():
    setting = dict(lr=0.1, momentum=0.9, dampening=0.0, nesterov=False, weight_decay=0.1, decoupled=False)
    params, grads = tensors(torch.float32), tensors(torch.float32, seed=1)
    old = [wide(p) for p in params]
    native_steps.sgd(params, grads, [None] * len(params), LAYOUTS, maximize=False, projected=False, **setting)
    for p, w, g, layout in zip(params, old, grads, LAYOUTS, strict=True):
        x = project(wide(g), layout) + 0.1 * w
        assert_close(p, w - 0.1 * x, torch.float32)


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_long_vectors(dtype, at, threads):
    layouts = [layout for _, layout in LONG]
    params, grads = tensors(dtype, cases=LONG), tensors(dtype, seed=1, cases=LONG)
    sums, steps = [torch.full_like(p, 0.1) for p in params], [torch.zeros(()) for _ in params]
    old = [wide(p) for p in params]
    setting = dict(lr=0.1, lr_decay=0.0, eps=1e-2, weight_decay=0.1, decoupled=False, maximize=False, at=at)
    native_steps.adagrad(params, grads, sums, steps, layouts, **setting)
    for i, layout in enumerate(layouts):
        start = torch.full_like(old[i], 0.1)
        expected = truth.adagrad(old[i], wide(grads[i]), start, 1, layout, **setting)
        assert_close(params[i], expected[0], dtype, "w")
        assert_close(sums[i], expected[1], dtype, "sum")


def _run(kind, at, dtype=torch.float32):
    cases = CASES + LONG
    layouts = [layout for _, layout in cases]
    params, grads = tensors(dtype, cases=cases), tensors(dtype, seed=1, cases=cases)
    first, second = [p.abs() for p in params], [p.abs() for p in params]
    steps = [torch.tensor(4.0) for _ in params]
    common = dict(lr=0.1, weight_decay=0.1, decoupled=False, maximize=False, at=at)
    if kind == "sgd":
        native_steps.sgd(params, grads, first, layouts, momentum=0.9, dampening=0.0, nesterov=True, **common)
    elif kind == "adam":
        native_steps.adam(
            params, grads, first, second, steps, layouts, beta1=0.9, beta2=0.99, eps=1e-8, **common
        )
    else:
        native_steps.adagrad(params, grads, first, steps, layouts, lr_decay=0.0, eps=1e-8, **common)
    return params + first + second


def instruction_sets():
    """All that this machine can run."""
    chosen, found = native._cpu.instruction_set(), []
    for name in ("sse2", "avx2", "avx512", "neon", "baseline"):
        try:
            found.append(native._cpu.instruction_set(name))
        except ValueError:
            continue
    native._cpu.instruction_set(chosen)
    assert chosen in found
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kind", "at"), list(itertools.product(["sgd", "adam", "adagrad"], ["gradient", "update"]))
)
def test_result_depends_on_neither_threads_nor_instruction_set(kind, at, dtype):
    chosen, before = native._cpu.instruction_set(), torch.get_num_threads()
    results = []
    try:
        others = [name for name in instruction_sets() if name != chosen]
        for threads, name in ((1, chosen), (2, chosen), (5, chosen), *((2, name) for name in others)):
            torch.set_num_threads(threads)
            native._cpu.instruction_set(name)
            results.append(_run(kind, at, dtype))
    finally:
        native._cpu.instruction_set(chosen)
        torch.set_num_threads(before)
    assert len(results) == 3 + len(others)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 9, 31, 32, 33, 64, 1000, 70_001])
@pytest.mark.parametrize("columns", [False, True])
def test_constant_vectors_come_out_exactly_zero(dtype, size, columns):
    values = torch.tensor([0.1, -1 / 3, 1e-3, 12345.678, 0.7]).to(dtype)
    rows = values[:, None].expand(5, size).contiguous()
    tensor, layout = (
        (rows.t().contiguous(), Layout.columns((size, 5))) if columns else (rows, Layout.rows((5, size)))
    )
    assert not native.centralized([tensor], [layout])[0].any()
    # and g + λw, when both are constant along the vector: Adam would make full steps of a residue
    params, grads = [tensor.clone()], [tensor * 3]
    m, v, steps = [torch.zeros_like(tensor)], [torch.zeros_like(tensor)], [torch.zeros(())]
    native_steps.adam(
        params, grads, m, v, steps, [layout], lr=1.0, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1,
        decoupled=False, maximize=False,
    )  # fmt: skip
    assert torch.equal(params[0], tensor)


@pytest.mark.parametrize(("mean", "std"), [(100.0, 1.0), (1.0, 1e-4), (1000.0, 1e-3), (-1e6, 1.0)])
@pytest.mark.parametrize(
    "layout",
    [Layout.rows((64, 576)), Layout.rows((9, 40)), Layout.rows((2, 300_007)), Layout.columns((530, 130))],
)
def test_a_mean_far_larger_than_the_spread_is_as_exact_as_the_references(layout, mean, std):
    shape = (layout.vectors, layout.length) if layout.outer == 1 else (layout.outer, layout.vectors)
    g = (torch.randn(shape, dtype=torch.float64) * std + mean).float()
    expected = project(wide(g), layout)
    error = (wide(native.centralized([g], [layout])[0]) - expected).abs().max() / std
    reference = (wide(centralize(g, layout)) - expected).abs().max() / std
    # half a unit in the last place of the result, which is a few times std
    assert error <= max(2 * reference, 4e-7)
    assert error <= 1e-6
    param = torch.zeros(shape)
    native_steps.sgd([param], [g], [], [layout], lr=1.0)
    assert (wide(param) + expected).abs().max() / std <= 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_columns_of_large_tensors_come_out_exactly_zero(dtype, threads):
    for rows, columns in ((530, 130), (4099, 70), (1203, 451)):
        tensor = torch.linspace(-3, 7, columns).to(dtype).expand(rows, columns).contiguous()
        layout = Layout.columns((rows, columns))
        assert not native.centralized([tensor], [layout])[0].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "layout",
    [Layout.rows((23, 40)), Layout.rows((23, 300)), Layout.columns((37, 53)), Layout.columns((1024, 70))],
)
def test_a_tensor_without_a_weight_has_no_decay(dtype, layout):
    shape = (layout.vectors, layout.length) if layout.outer == 1 else (layout.outer, layout.vectors)
    first, second, weight = tensors(dtype, cases=[(shape, layout)] * 3)
    got = native.centralized([first, second], [layout] * 2, [None, weight], 0.1)
    assert torch.equal(got[0], native.centralized([first], [layout])[0])
    odd = torch.stack([first, first], -1)[..., 0]  # with gaps, so that it goes through a copy
    assert torch.equal(native.centralized([odd, second], [layout] * 2, [None, weight], 0.1)[0], got[0])
    assert torch.equal(got[1], native.centralized([second], [layout], [weight], 0.1)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_long_vectors_are_centred(dtype, decay, threads):
    layouts = [layout for _, layout in LONG]
    gradients, weights = tensors(dtype, cases=LONG), tensors(dtype, seed=1, cases=LONG)
    copies = [g.clone() for g in gradients]
    native.centralize_(copies, layouts, weights, decay)
    for g, w, out, layout in zip(gradients, weights, copies, layouts, strict=True):
        x = wide(g) + decay * wide(w)
        assert_close(out, wide(g) - (x - project(x, layout)), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(
    "layout",
    [
        Layout.rows((3, 40)),
        Layout.rows((3, 1000)),
        Layout.rows((9, 1000)),
        Layout.columns((40, 3)),
        Layout.columns((1024, 70)),
    ],
)
def test_sums_that_overflow_where_means_do_not(dtype, layout):
    big = torch.finfo(dtype).max
    shape = (layout.vectors, layout.length) if layout.outer == 1 else (layout.outer, layout.vectors)
    tensor = torch.full(shape, big, dtype=dtype)
    assert not native.centralized([tensor], [layout])[0].any()
    half = torch.full(shape, big / 2, dtype=dtype)
    (half if layout.outer == 1 else half.t())[:, ::2] *= 0.5
    got = native.centralized([half], [layout])[0]
    assert bool(got.isfinite().all())
    assert_close(got / big, project(wide(half) / big, layout), dtype)
    mixed = torch.full(shape, big, dtype=dtype)
    (mixed if layout.outer == 1 else mixed.t())[:, :2] *= -1
    assert bool(native.centralized([mixed / 4], [layout])[0].isfinite().all())
    # and in a step, of which the kernel has several forms
    param, grad = torch.zeros(shape, dtype=dtype), half / 4
    native_steps.sgd(
        [param], [grad], [], [layout], lr=1.0, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0,
        decoupled=False, maximize=False,
    )  # fmt: skip
    assert_close(param / big, -project(wide(grad) / big, layout), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_gradients_are_not_masked(dtype, bad):
    for shape, layout in (
        ((4, 100), Layout.rows((4, 100))),
        ((4, 8), Layout.rows((4, 8))),
        ((9, 4), Layout.columns((9, 4))),
    ):
        tensor = torch.randn(shape).to(dtype)
        vectors = tensor if layout.outer == 1 else tensor.t()
        vectors[1, 2] = bad
        out = native.centralized([tensor], [layout])[0]
        out = out if layout.outer == 1 else out.t()
        assert not out[1].isfinite().any()
        assert bool(out[[0, 2, 3]].isfinite().all())


def _strided(kind, tensor):
    if kind == "channels last":
        return tensor.to(memory_format=torch.channels_last)
    if kind == "transposed":
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == "gaps":
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    if kind == "misaligned":
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)
    return tensor


STRIDES = ["contiguous", "channels last", "transposed", "gaps", "misaligned"]


@pytest.mark.parametrize(
    "layout", [Layout.rows((6, 4, 3, 5)), Layout.transposed((6, 4, 3, 5), groups=2), None]
)
@pytest.mark.parametrize(("of_param", "of_grad"), list(itertools.product(STRIDES, STRIDES)))
def test_strides(of_param, of_grad, layout):
    shape = (6, 4, 3, 5)
    param, grad = _strided(of_param, torch.randn(shape)), _strided(of_grad, torch.randn(shape))
    old, buffers = wide(param), [None]
    setting = dict(
        lr=0.1, momentum=0.9, dampening=0.0, nesterov=False, weight_decay=0.1, decoupled=False, maximize=False
    )
    pointer, kept = param.data_ptr(), grad.clone()
    native_steps.sgd([param], [grad], buffers, [layout], **setting)
    expected = truth.sgd(old, wide(grad), None, layout, at="gradient", **setting)
    assert_close(param, expected[0], torch.float32)
    assert_close(buffers[0], expected[1], torch.float32)
    assert param.data_ptr() == pointer
    assert torch.equal(grad, kept)  # a step leaves the gradient alone
    native_steps.sgd([param], [grad], buffers, [layout], **setting)
    expected = truth.sgd(expected[0], wide(grad), expected[1], layout, at="gradient", **setting)
    assert_close(param, expected[0], torch.float32)


def test_expanded_gradient_and_state_in_another_order():
    param, grad = torch.randn(4, 6), torch.randn(1, 6).expand(4, 6)
    m, v, steps = [torch.zeros(6, 4).t()], [torch.zeros(4, 6)], [torch.zeros((), dtype=torch.float64)]
    old, layout = wide(param), Layout.rows((4, 6))
    setting = dict(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-2, weight_decay=0.1, decoupled=True, maximize=False)
    native_steps.adam([param], [grad], m, v, steps, [layout], **setting)
    zero = torch.zeros(4, 6, dtype=torch.float64)
    expected = truth.adam(old, wide(grad), zero, zero, 1, layout, at="gradient", **setting)
    for got, wanted in zip((param, m[0], v[0]), expected, strict=True):
        assert_close(got, wanted, torch.float32)
    assert m[0].stride() == (1, 4)
    assert steps[0].item() == 1


def test_grad_scale_and_found_inf_as_torchs_fused_step():
    torch.manual_seed(0)
    scale, fine, bad = torch.tensor(1024.0), torch.tensor(0.0), torch.tensor(1.0)
    common = dict(lr=0.1, weight_decay=0.1, maximize=False)
    ours, theirs = torch.randn(7, 40), None
    theirs, grads = ours.clone(), [torch.randn(7, 40) * 1024 for _ in range(2)]
    state = [torch.zeros(7, 40) for _ in range(4)]
    steps = [torch.tensor(0.0), torch.tensor(0.0)]
    mine = [g.clone() for g in grads]
    for g, own, inf in zip(grads, mine, (fine, bad), strict=True):
        native_steps.adam(
            [ours], [own], [state[0]], [state[1]], steps[:1], [None], beta1=0.9, beta2=0.99, eps=1e-8,
            decoupled=False, grad_scale=scale, found_inf=inf, **common,
        )  # fmt: skip
        adam(
            [theirs], [g], [state[2]], [state[3]], [], steps[1:], fused=True, grad_scale=scale, found_inf=inf,
            beta1=0.9, beta2=0.99, eps=1e-8, amsgrad=False, **common,
        )  # fmt: skip
    assert torch.allclose(ours, theirs, rtol=1e-6)
    assert torch.equal(mine[0], grads[0])  # torch unscales the gradient in place
    assert steps[0].item() == steps[1].item() == 1


def test_momentum_not_made_when_found_inf():
    buffers = [None]
    native_steps.sgd(
        [torch.ones(3, 4)], [torch.ones(3, 4)], buffers, [None], lr=0.1, momentum=0.9, dampening=0.0, nesterov=False,
        weight_decay=0.0, decoupled=False, maximize=False, found_inf=torch.tensor(1.0),
    )  # fmt: skip
    assert buffers == [None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_layouts_it_is_torchs_fused_step(dtype):
    ours, theirs = tensors(dtype), tensors(dtype)
    none = [None] * len(ours)
    for model, step in ((ours, True), (theirs, False)):
        m, v = ([torch.zeros_like(p) for p in model] for _ in range(2))
        steps = [torch.zeros(()) for _ in model]
        for k in range(5):
            grads = tensors(dtype, seed=k)
            common = dict(lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, maximize=False)
            if step:
                native_steps.adam(model, grads, m, v, steps, none, decoupled=True, **common)
            else:
                adam(
                    model,
                    grads,
                    m,
                    v,
                    [],
                    steps,
                    fused=True,
                    amsgrad=False,
                    decoupled_weight_decay=True,
                    **common,
                )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


def test_writes_are_known_to_autograd():
    weight = torch.nn.Parameter(torch.randn(3, 4))
    loss = (weight * weight).sum()
    native_steps.sgd(
        [weight], [torch.ones(3, 4)], [None], [Layout.rows((3, 4))], lr=0.1, momentum=0.9, dampening=0.0,
        nesterov=False, weight_decay=0.0, decoupled=False, maximize=False,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_tensors():
    with torch.inference_mode():
        tensor = torch.tensor([[1.0, 2.0, 6.0]])
    native.centralize_([tensor], [Layout.rows((1, 3))])
    assert tensor.tolist() == [[-2.0, -1.0, 3.0]]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3, dtype=torch.complex64),
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3, dtype=torch.int64),
        torch.eye(3).to_sparse(),
        torch._neg_view(torch.ones(2, 3)),
    ],
)
def test_what_is_not_for_these_kernels_is_refused_and_untouched(tensor):
    fine = torch.ones(2, 3)
    with pytest.raises(native.Unsupported, match="tensor 1"):
        native.centralize_([fine, tensor], [Layout.rows((2, 3))] * 2)
    assert torch.equal(fine, torch.ones(2, 3))


def test_layout_of_another_size_is_refused():
    with pytest.raises(native.Unsupported, match="another number of elements"):
        native.centralize_([torch.ones(2, 3)], [Layout.rows((2, 4))])
