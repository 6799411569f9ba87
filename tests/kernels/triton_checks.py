"""Run by test_triton.py in processes of their own: checks in the interpreter, or `compile CAPABILITY`."""

import sys
from functools import partial

import kernel_equations
import torch
from kernel_equations import adagrad, adam, assert_close, project, sgd, wide

from gradcent import Layout
from gradcent.kernels import triton

# The interpreter takes about a millisecond per operation: the smaller cases, and one of several stretches.
CASES = [case for case in kernel_equations.CASES if torch.Size(case[0]).numel() < 2800] + [((5000,), None)]
tensors = partial(kernel_equations.tensors, cases=CASES)
LAYOUTS = [layout for _, layout in CASES]


def check_centralize(dtype):
    grads, weights = tensors(dtype), tensors(dtype, seed=1)
    for decay in (0.0, 0.1):
        results = triton.centralized(grads, LAYOUTS, weights if decay else None, decay)
        for g, w, out, layout in zip(grads, weights, results, LAYOUTS, strict=True):
            x = wide(g) + decay * wide(w)
            assert_close(out, wide(g) if layout is None else wide(g) - (x - project(x, layout)), dtype)
    triton.centralize_(grads, LAYOUTS)
    for g, layout in zip(grads, LAYOUTS, strict=True):
        if layout is not None and g.numel():
            assert_close(project(wide(g), layout), wide(g), dtype)


def check_sgd(dtype, decoupled=False):
    setting = dict(
        lr=0.1,
        momentum=0.9,
        dampening=0.1,
        nesterov=False,
        weight_decay=0.1,
        decoupled=decoupled,
        maximize=True,
    )
    for at in ("gradient", "update"):
        params, buffers = tensors(dtype), [None] * len(CASES)
        for step in range(2):
            grads = tensors(dtype, seed=step + 1)
            old = [(wide(p), None if b is None else wide(b)) for p, b in zip(params, buffers, strict=True)]
            triton.sgd(params, grads, buffers, LAYOUTS, at=at, **setting)
            for i, layout in enumerate(LAYOUTS):
                expected = sgd(old[i][0], wide(grads[i]), old[i][1], layout, at=at, **setting)
                assert_close(params[i], expected[0], dtype, "w")
                assert_close(buffers[i], expected[1], dtype, "m")


def check_sgdw(dtype):
    check_sgd(dtype, decoupled=True)


def check_adam(dtype, decoupled=False):
    # g / (|g| + eps) multiplies the rounding of an element near 0 by 1 / eps: with a small eps the
    # comparison would be of that, not of the kernel
    setting = dict(
        lr=0.01, beta1=0.9, beta2=0.99, eps=1e-2, weight_decay=0.1, decoupled=decoupled, maximize=False
    )
    for at in ("gradient", "update"):
        params = tensors(dtype)
        m, v, steps = (
            [torch.zeros_like(p) for p in params],
            [torch.zeros_like(p) for p in params],
            [torch.zeros(()) for _ in params],
        )
        for step in range(2):
            grads = tensors(dtype, seed=step + 1)
            old = [tuple(wide(t) for t in each) for each in zip(params, m, v, strict=True)]
            triton.adam(params, grads, m, v, steps, LAYOUTS, at=at, **setting)
            for i, layout in enumerate(LAYOUTS):
                w, a, b = old[i]
                expected = adam(w, wide(grads[i]), a, b, step + 1, layout, at=at, **setting)
                for got, wanted in zip((params[i], m[i], v[i]), expected, strict=True):
                    assert_close(got, wanted, dtype)


def check_adamw(dtype):
    check_adam(dtype, decoupled=True)


def check_adagrad(dtype):
    setting = dict(lr=0.1, lr_decay=0.1, eps=1e-4, weight_decay=0.1, decoupled=False, maximize=False)
    for at in ("gradient", "update"):
        params, grads = tensors(dtype), tensors(dtype, seed=1)
        sums, steps = [torch.full_like(p, 0.1) for p in params], [torch.ones(()) for _ in params]
        old = [(wide(p), wide(s)) for p, s in zip(params, sums, strict=True)]
        triton.adagrad(params, grads, sums, steps, LAYOUTS, at=at, **setting)
        for i, layout in enumerate(LAYOUTS):
            expected = adagrad(old[i][0], wide(grads[i]), old[i][1], 2, layout, at=at, **setting)
            assert_close(params[i], expected[0], dtype)
            assert_close(sums[i], expected[1], dtype)


def check_scaled(dtype):
    layout = Layout.rows((3, 40))
    setting = dict(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-4, weight_decay=0.1, decoupled=False, maximize=False)
    p, g = torch.randn(3, 40).to(dtype), torch.randn(3, 40).to(dtype)
    old, zero, scaled = wide(p), torch.zeros(3, 40, dtype=torch.float64), g * 64
    m, v, steps = torch.zeros_like(p), torch.zeros_like(p), [torch.zeros(())]
    for inf in (1.0, 0.0):
        triton.adam(
            [p],
            [scaled],
            [m],
            [v],
            steps,
            [layout],
            grad_scale=torch.tensor(64.0),
            found_inf=torch.tensor(inf),
            **setting,
        )
        assert steps[0].item() == 1 - inf
        if inf:
            assert torch.equal(wide(p), old)
    assert_close(p, adam(old, wide(g), zero, zero, 1, layout, at="gradient", **setting)[0], dtype)
    assert torch.equal(scaled, g)


def check_constant(dtype):
    values = torch.tensor([0.1, -1 / 3, 1e-3, 12345.678]).to(dtype)
    for size in (9, 1000, 3000):
        rows = values[:, None].expand(4, size).contiguous()
        assert not triton.centralized([rows], [Layout.rows((4, size))])[0].any()
        assert not triton.centralized([rows.t().contiguous()], [Layout.columns((size, 4))])[0].any()


def check_channels_last(dtype):
    tensor = torch.randn(4, 3, 5, 5).to(dtype).to(memory_format=torch.channels_last)
    layout = Layout.rows((4, 3, 5, 5))
    assert_close(triton.centralized([tensor], [layout])[0], project(wide(tensor), layout), dtype)
    try:
        triton.centralized([tensor], [Layout.columns((4, 3, 5, 5))])
    except TypeError:
        return
    raise AssertionError("an order that the kernels do not follow was not refused")


def compile_all(capability):
    import itertools

    import triton as compiler
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gradcent.kernels import triton_kernels as code

    names = code.step_kernel.arg_names
    scalars = ("sign", "decay", "momentum", "keep", "of_x", "of_m", "blend", "beta2", "rest", "eps")
    signature = dict.fromkeys(names, "constexpr")
    signature |= dict.fromkeys(("table", "tasks"), "*i64") | dict.fromkeys(
        ("grad_scale", "found_inf"), "*fp32"
    )
    signature |= dict.fromkeys(scalars, "fp32")
    done = 0
    for dtype, op, update in itertools.product(
        (tl.float32, tl.float64, tl.bfloat16), range(5), (False, True)
    ):
        wide_type = tl.float64 if dtype == tl.float64 else tl.float32
        constants = dict(
            T=dtype, ACC=wide_type, OP=op, COUPLED=op > 0, PROJECTED=True, UPDATE=update and op > 0, SCALED=op == 3,
            ROW_V=code.ROW_TILE[0], ROW_L=code.ROW_TILE[1], COLUMN_V=code.COLUMN_TILE[0], COLUMN_L=code.COLUMN_TILE[1],
        )  # fmt: skip
        source = ASTSource(
            code.step_kernel,
            signature={**signature, "rates": "*fp64" if dtype == tl.float64 else "*fp32"},
            constexprs={(names.index(name),): value for name, value in constants.items()},
        )
        made = compiler.compile(
            source, target=GPUTarget("cuda", int(capability), 32), options={"enable_fp_fusion": False}
        )
        done += len(made.asm["cubin"]) > 0
    print(done)


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_all(sys.argv[2])
    else:
        for name in sys.argv[1:]:
            for dtype in (torch.float32, torch.float64 if name == "adam" else torch.bfloat16):
                torch.manual_seed(20200708)  # as every other test
                globals()[f"check_{name}"](dtype)
            print(name)
