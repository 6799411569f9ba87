"""Checks of the Triton kernels in Triton's interpreter, run by test_triton.py in processes of their own."""

import contextlib
import functools
import itertools
import sys
import warnings
from unittest import mock

import kernel_equations
import pytest
import torch
from kernel_equations import adagrad, adam, assert_close, project, sgd, wide

import gradcent
from gradcent import Layout
from gradcent.kernels import (
    fused_steps,
    native,
    triton,
    triton_check,
    triton_kernels,
    triton_launch,
    triton_tables,
)
from gradcent.kernels.fused_steps import StepArgs

# The interpreter takes about a millisecond per operation: the smaller cases, and some that need several tiles.
CASES = [case for case in kernel_equations.CASES if torch.Size(case[0]).numel() < 2200] + [
    ((2500,), None),
    ((2, 4100), Layout.rows((2, 4100))),  # longer than the tile
    ((1, 4101), Layout.rows((1, 4101))),  # the same, unaligned
    ((70, 36), Layout.columns((70, 36))),  # aligned columns, several tiles
    ((40, 2, 4, 4), Layout.columns((40, 2, 4, 4))),  # aligned runs
    ((2, 9, 1, 5), Layout.transposed((2, 9, 1, 5), groups=2)),
]
SMALL = [case for case in CASES if torch.Size(case[0]).numel() <= 400] + [((1, 4101), Layout.rows((1, 4101)))]


def tensors(dtype, cases, seed=0, unaligned=False):
    """The cases' tensors; unaligned ones begin one element behind a multiple of 16 bytes."""
    made = kernel_equations.tensors(dtype, seed, cases)
    if not unaligned:
        return made
    views = [torch.empty(t.numel() + 1, dtype=dtype)[1:].view(t.shape).copy_(t) for t in made]
    assert all(t.data_ptr() % 16 for t in views if t.numel())
    return views


def layouts_of(cases):
    return [layout for _, layout in cases]


def check_centralize(dtype):
    for decay, unaligned in ((0.0, True), (0.1, False)):
        grads, weights = (tensors(dtype, CASES, seed, unaligned) for seed in (0, 1))
        results = triton.centralized(grads, layouts_of(CASES), weights if decay else None, decay)
        for g, w, out, (_, layout) in zip(grads, weights, results, CASES, strict=True):
            x = wide(g) + decay * wide(w)
            assert_close(out, wide(g) if layout is None else wide(g) - (x - project(x, layout)), dtype)
    before = [wide(g) for g in grads]
    versions = [g._version for g in grads]
    triton.centralize_(
        grads, layouts_of(CASES), weights, torch.tensor(0.1, dtype=torch.float64)
    )  # a decay on the tensors' device
    for g, old, w, version, (_, layout) in zip(grads, before, weights, versions, CASES, strict=True):
        x = old + 0.1 * wide(w)
        assert_close(g, old if layout is None else old - (x - project(x, layout)), dtype)
        assert g._version == version + (layout is not None)


def check_sgd(dtype, cases=SMALL, options=None):
    """All options of SGD, two steps each: the first creates the momentum buffers."""
    combinations = options or [
        (at, decoupled, nesterov, momentum, unaligned)
        for at, decoupled, (nesterov, momentum), unaligned in itertools.product(
            ("gradient", "update"), (False, True), ((False, 0.9), (True, 0.9), (False, 0.0)), (False, True)
        )
    ]
    if options is None and dtype != torch.float32:
        combinations = combinations[::5]
    for number, (at, decoupled, nesterov, momentum, unaligned) in enumerate(combinations):
        setting = dict(
            lr=0.1, momentum=momentum, dampening=0.0 if nesterov else 0.1, nesterov=nesterov, weight_decay=0.1,
            decoupled=decoupled, maximize=number % 3 == 0, projected=number % 4 != 0,
        )  # fmt: skip
        rule = fused_steps.SGDW if decoupled else fused_steps.SGD
        params, buffers = tensors(dtype, cases, 0, unaligned), [None] * len(cases)
        for step in range(2):
            grads = tensors(dtype, cases, step + 1, unaligned)
            old = [(wide(p), None if b is None else wide(b)) for p, b in zip(params, buffers, strict=True)]
            triton.step_lists(rule, params, grads, [buffers], layouts_of(cases), StepArgs(at=at, **setting))
            for i, (_, layout) in enumerate(cases):
                expected = sgd(old[i][0], wide(grads[i]), old[i][1], layout, at=at, **setting)
                assert_close(params[i], expected[0], dtype, "w")
                if momentum:
                    assert_close(buffers[i], expected[1], dtype, "m")


def check_sgd_layouts(dtype):
    check_sgd(dtype, CASES, [("gradient", False, False, 0.9, False), ("update", False, True, 0.9, True)])


def check_new_parameters(dtype):
    """A list where some momentum buffers exist and others do not: dampening acts on the existing ones only."""
    setting = dict(lr=0.1, momentum=0.9, dampening=0.5, nesterov=False, weight_decay=0.0, maximize=False)
    params, grads = tensors(dtype, SMALL), tensors(dtype, SMALL, 1)
    buffers = [torch.ones_like(p) if i % 2 else None for i, p in enumerate(params)]
    old = [(wide(p), None if b is None else wide(b)) for p, b in zip(params, buffers, strict=True)]
    triton.step_lists(fused_steps.SGD, params, grads, [buffers], layouts_of(SMALL), StepArgs(**setting))
    for i, (_, layout) in enumerate(SMALL):
        expected = sgd(
            old[i][0], wide(grads[i]), old[i][1], layout, at="gradient", decoupled=False, **setting
        )
        assert_close(params[i], expected[0], dtype, "w")
        assert_close(buffers[i], expected[1], dtype, "m")


def check_adam(dtype):
    cases = CASES if dtype in (torch.float32, torch.bfloat16) else SMALL
    # g / (|g| + eps) multiplies the rounding of an element near 0 by 1 / eps: a small eps would compare that
    for number, (at, decoupled) in enumerate(itertools.product(("gradient", "update"), (False, True))):
        setting = dict(
            lr=0.01, beta1=0.9, beta2=0.99, eps=1e-2, weight_decay=0.1, decoupled=decoupled, maximize=False
        )
        rule = fused_steps.ADAMW if decoupled else fused_steps.ADAM
        unaligned = number % 2 == 1
        params = tensors(dtype, cases, 0, unaligned)
        m, v = ([p.detach().clone().zero_() for p in params] for _ in range(2))
        counters = [torch.zeros(()) for _ in params]
        for step in range(2):
            grads = tensors(dtype, cases, step + 1, unaligned)
            old = [tuple(map(wide, states)) for states in zip(params, m, v, strict=True)]
            triton.step_lists(
                rule, params, grads, [m, v, counters], layouts_of(cases), StepArgs(at=at, **setting)
            )
            assert {c.item() for c in counters} == {step + 1.0}
            for i, (_, layout) in enumerate(cases):
                expected = adam(*_adam_order(old[i], grads[i]), step + 1, layout, at=at, **setting)
                for got, wanted in zip((params[i], m[i], v[i]), expected, strict=True):
                    assert_close(got, wanted, dtype)


def _adam_order(old, grad):
    w, m, v = old
    return w, wide(grad), m, v


def check_adagrad(dtype):
    setting = dict(lr=0.1, lr_decay=0.1, eps=1e-4, weight_decay=0.1, decoupled=False, maximize=True)
    for at, unaligned in (("gradient", False), ("update", True)):
        params, grads = tensors(dtype, SMALL, 0, unaligned), tensors(dtype, SMALL, 1, unaligned)
        sums, counters = [torch.full_like(p, 0.1) for p in params], [torch.ones(()) for _ in params]
        old = [(wide(p), wide(s)) for p, s in zip(params, sums, strict=True)]
        args = StepArgs(at=at, **setting)
        triton.step_lists(fused_steps.ADAGRAD, params, grads, [sums, counters], layouts_of(SMALL), args)
        for i, (_, layout) in enumerate(SMALL):
            expected = adagrad(old[i][0], wide(grads[i]), old[i][1], 2, layout, at=at, **setting)
            assert_close(params[i], expected[0], dtype)
            assert_close(sums[i], expected[1], dtype)


def check_scaled(dtype):
    """A GradScaler's tensors: found_inf skips everything; otherwise gradients are unscaled, also in place."""
    cases = [((3, 40), Layout.rows((3, 40))), ((40, 6), Layout.columns((40, 6))), ((7,), None)]
    setting = dict(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-4, weight_decay=0.1, decoupled=False, maximize=False)
    params, grads = tensors(dtype, cases), tensors(dtype, cases, 1)
    scaled = [g * 64 for g in grads]
    old = [wide(p) for p in params]
    m, v = ([torch.zeros_like(p) for p in params] for _ in range(2))
    counters = [torch.zeros(()) for _ in params]
    for inf in (1.0, 0.0):
        args = StepArgs(grad_scale=torch.tensor(64.0), found_inf=torch.tensor(inf), **setting)
        triton.step_lists(fused_steps.ADAM, params, scaled, [m, v, counters], layouts_of(cases), args)
        assert {c.item() for c in counters} == {1 - inf}
        if inf:
            assert all(torch.equal(wide(p), before) for p, before in zip(params, old, strict=True))
    for p, before, g, s, (_, layout) in zip(params, old, grads, scaled, cases, strict=True):
        zero = torch.zeros_like(before)
        assert_close(p, adam(before, wide(g), zero, zero, 1, layout, at="gradient", **setting)[0], dtype)
        assert torch.equal(s, g)


def check_device_numbers(dtype):
    """Counters and learning rate on the device, counters that differ: the same results as numbers on the host."""
    setting = dict(beta1=0.9, beta2=0.99, eps=1e-2, weight_decay=0.1, decoupled=True, maximize=False)
    cases = SMALL[:12]
    for rule_name, inf in itertools.product(("adam", "adagrad"), (None, 0.0, 1.0)):
        params, grads = tensors(dtype, cases), tensors(dtype, cases, 1)
        m, v = ([torch.full_like(p, 0.01) for p in params] for _ in range(2))
        counters = [torch.tensor(float(i % 3)) for i in range(len(params))]
        old = [tuple(map(wide, states)) for states in zip(params, m, v, strict=True)]
        rule = fused_steps.ADAMW if rule_name == "adam" else fused_steps.ADAGRAD
        extra = {} if rule_name == "adam" else {"lr_decay": 0.1}
        args = StepArgs(
            lr=torch.tensor(0.01, dtype=torch.float64),
            found_inf=None if inf is None else torch.tensor(inf),
            **setting,
            **extra,
        )
        lists = [params, grads, m, v, counters] if rule_name == "adam" else [params, grads, m, None, counters]
        table = triton_tables.table_for(lists, layouts_of(cases))
        rates = triton_launch._device_rates(rule, table, counters, args)
        name, scalars = triton_launch._rule(rule, args, fresh=False)
        triton_launch._launch_all(
            table, triton_launch._constants(name, "DECOUPLED"), scalars, rates, None, args.found_inf
        )
        for i, (_, layout) in enumerate(cases):
            step = i % 3 + 1
            assert counters[i].item() == step - (inf or 0.0)
            if inf:
                assert torch.equal(wide(params[i]), old[i][0])
                continue
            if rule_name == "adam":
                expected = adam(
                    *_adam_order(old[i], grads[i]), step, layout, at="gradient", lr=0.01, **setting
                )
            else:
                options = {k: x for k, x in setting.items() if not k.startswith("beta")} | extra
                w, s, _ = old[i]
                expected = adagrad(w, wide(grads[i]), s, step, layout, at="gradient", lr=0.01, **options)
            assert_close(params[i], expected[0], dtype)


def check_constant(dtype):
    """A constant vector leaves exactly 0, whatever its length and value; so does one near the largest float."""
    values = torch.tensor([0.1, -1 / 3, 1e-3, 12345.678, 1e-30, 3e38 if dtype != torch.float16 else 6e4]).to(
        dtype
    )
    for size in (3, 9, 1000, 4099):
        rows = values[:, None].expand(6, size).contiguous()
        assert not triton.centralized([rows], [Layout.rows((6, size))])[0].any(), size
        columns = rows.t().contiguous()
        assert not triton.centralized([columns], [Layout.columns((size, 6))])[0].any(), size


def check_offset(dtype):
    """A mean much larger than the spread, and an outlier: as exact as the reference in the same dtype."""
    generator = torch.Generator().manual_seed(0)
    for size, mean, outlier in ((300, 1e4, 0.0), (4500, 1e4, 0.0), (300, 0.0, 1e4), (4500, 0.0, 1e4)):
        rows = torch.randn(2, size, generator=generator, dtype=torch.float64) + mean
        rows[:, 0] += outlier
        rows = rows.to(dtype)
        layout = Layout.rows((2, size))
        error = (wide(triton.centralized([rows], [layout])[0]) - project(wide(rows), layout)).abs()
        eps = torch.finfo(dtype).eps
        assert error[:, 1:].max() < 4 * eps * (1 + abs(outlier) / size + 4), (size, mean, error.max())


def check_moved(dtype):
    """Tables follow tensors that move, change alignment or memory format; a stale table would step the old memory."""
    layout = Layout.rows((4, 3, 2, 2))
    args = StepArgs(lr=1.0)
    layouts = [layout]
    p = torch.randn(4, 3, 2, 2).to(dtype)
    for grad in (
        torch.randn(4, 3, 2, 2).to(dtype),
        torch.randn(4, 3, 2, 2).to(dtype),
        torch.randn(49).to(dtype)[1:].view(4, 3, 2, 2),
    ):
        before = wide(p)
        triton.step_lists(fused_steps.SGD, [p], [grad], [[None]], layouts, args)
        assert_close(p, before - project(wide(grad), layout), dtype)
    channels_last = p.to(memory_format=torch.channels_last)
    before = wide(channels_last)
    grad = grad.to(memory_format=torch.channels_last)
    triton.step_lists(fused_steps.SGD, [channels_last], [grad], [[None]], layouts, args)
    assert_close(channels_last, before - project(wide(grad), layout), dtype)


def check_refused(dtype):
    """What the kernels cannot follow is refused, with the reason, before anything changes."""
    tensor = torch.randn(4, 3, 5, 5).to(dtype)
    last = tensor.to(memory_format=torch.channels_last)
    long_runs = Layout.transposed((2, 2, 1025), groups=1)
    for tensors_, layout, words in (
        ([last], Layout.columns((4, 3, 5, 5)), "order of dims"),
        ([torch.randn(2, 2, 1025).to(dtype)], long_runs, "1025"),
        ([tensor.to(torch.complex64)], Layout.rows((4, 3, 5, 5)), "complex64"),
    ):
        with pytest.raises(TypeError, match=words):
            triton.centralized(tensors_, [layout])
    p = tensor.clone()
    with pytest.raises(TypeError, match="another order"):
        triton.step_lists(
            fused_steps.SGD,
            [p],
            [last],
            [[None]],
            [Layout.rows((4, 3, 5, 5))],
            StepArgs(lr=1.0, momentum=0.9),
        )
    assert torch.equal(p, tensor)


def check_optimizer(dtype):
    """gradcent.optim with kernel="triton" beside kernel="reference", from the first step on."""
    for name, options in (
        ("SGD", dict(momentum=0.9, weight_decay=0.1)),
        ("AdamW", dict(weight_decay=0.1, eps=1e-2)),
        ("Adagrad", dict(eps=1e-2)),
    ):
        ends = []
        for kernel in ("triton", "reference"):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ConvTranspose2d(4, 6, 3)).to(dtype)
            optimizer = getattr(gradcent.optim, name)(
                model.parameters(), lr=0.01, model=model, kernel=kernel, **options
            )
            for step in range(6):
                for number, p in enumerate(model.parameters()):
                    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step)).to(dtype)
                    if step == 2 and number == 1:
                        p.grad = None  # fewer rows in the table
                    elif step == 3:  # another alignment
                        memory = torch.empty(p.numel() + 1, dtype=dtype)[1:].view(p.shape)
                        p.grad = memory.copy_(p.grad)
                    elif step == 4:  # the same objects with other memory
                        p.data = p.data.clone()
                        for value in optimizer.state[p].values():
                            value.data = value.data.clone()
                version = model[0].weight._version
                optimizer.step()
                assert model[0].weight._version > version
            ends.append([wide(p.detach()) for p in model.parameters()])
        for got, expected in zip(*ends, strict=True):
            assert (got - expected).abs().max() < 10 * kernel_equations.TOLERANCE[dtype], name


def check_bench(dtype):
    """`gradcent bench --device cuda` up to the launch: CPU tensors, the interpreter's self-check, launches recorded."""
    import json
    import tempfile
    from pathlib import Path

    from gradcent_lab.bench import gpu, host_time, parameter_lists
    from gradcent_lab.cli import main

    launched = []

    def record(kernel, *_, **constants):
        launched.append((kernel.__name__, constants["T"].name))

    listed = {
        "small": lambda: [
            ((40, 24), Layout.rows((40, 24))),
            ((30, 8), Layout.columns((30, 8))),
            ((24,), None),
        ]
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        assert main(["bench", "--device", "cuda", "--out", folder]) == 2  # no GPU here
        stack.enter_context(mock.patch.object(gpu, "cuda_device", return_value=torch.device("cpu")))
        stack.enter_context(mock.patch.object(gpu, "FLUSH_BYTES", 1024))
        stack.enter_context(mock.patch.dict(parameter_lists.LISTS, listed))
        stack.enter_context(mock.patch.object(native, "available", return_value=False))
        kernels_for = stack.enter_context(mock.patch("gradcent.optim._native_step._kernels_for"))
        kernels_for.return_value = triton
        words = [
            "bench",
            "--device",
            "cuda",
            "--lists",
            "small",
            "--optimizers",
            "SGDM",
            "AdamW",
            "--rounds",
            "5",
        ]
        for operation in triton_check.OPERATIONS:
            triton_check.require(torch.device("cpu"), {torch.float32}, operation)
        with (
            mock.patch.object(triton_launch, "launch", record),
            mock.patch.object(triton_check, "check") as check,
        ):
            check.return_value = triton_check.Result("a GPU", torch.float32)
            assert main([*words, "--out", folder]) == 0
        document = json.loads((Path(folder) / "bench-cuda.json").read_text())
    assert [step["optimizer"] for step in document["steps"]] == ["SGDM", "AdamW"]
    assert all(step["times"]["gradcent"]["rounds"] == 5 for step in document["steps"])
    # in every step one launch for the rows, one for the columns, one for the tensor without a layout
    assert len(launched) == 2 * 3 * (1 + 1 + 5)
    assert {name for name, _ in launched} == {"rows_kernel", "columns_kernel"}
    result = host_time.host_time(20, rounds=5)
    assert result["launches"] == 1


def check_self_check(dtype):
    """Good kernels pass; a kernel broken on purpose is noticed, warned about once and switched off."""
    device = torch.device("cpu")
    assert triton_check.check(device, dtype).problem == ""
    p, layout = torch.randn(4, 64).to(dtype), Layout.rows((4, 64))

    class Broken:
        """A kernel with the wrong sign, or one that does not compile."""

        def __init__(self, kernel, error):
            self.kernel, self.error = kernel, error

        def __getitem__(self, grid):
            if self.error:
                raise RuntimeError("PassManager::run failed")
            return lambda *args, **constants: self.kernel[grid](*args, **{**constants, "MAXIMIZE": True})

    for name, error, words in (
        ("rows_kernel", False, "differs from the reference"),
        ("columns_kernel", True, "run failed"),
    ):
        original = getattr(triton_kernels, name)
        triton_check._results.clear()
        setattr(triton_kernels, name, Broken(original, error))
        before = p.clone()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    with pytest.raises(TypeError, match=words):
                        triton.step_lists(
                            fused_steps.SGD, [p], [p.clone()], [[None]], [layout], StepArgs(lr=0.1)
                        )
        finally:
            setattr(triton_kernels, name, original)
            triton_check._results.clear()
        messages = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
        assert len(messages) == 1, messages
        assert words in messages[0]
        assert "report this" in messages[0]
        assert torch.equal(p, before)


def check_self_check_operations(dtype):
    """The check of every operation notices results that are off by a thousandth, of rows and of columns."""
    tensors_of, launch = triton_check._tensors, triton_launch.launch
    written = []

    def remember(*arguments):
        written.append(tensors_of(*arguments))
        return written[-1]

    def wrong_launch(broken, kernel, *arguments, **constants):
        launch(kernel, *arguments, **constants)
        if kernel is broken:
            for tensors in written:
                torch._foreach_mul_(tensors, 1.001)

    for broken in (triton_kernels.rows_kernel, triton_kernels.columns_kernel):
        for operation in triton_check.OPERATIONS:
            written.clear()
            with (
                mock.patch.object(triton_launch, "launch", functools.partial(wrong_launch, broken)),
                mock.patch.object(triton_check, "_tensors", remember),
            ):
                problem = triton_check.check(torch.device("cpu"), dtype, (operation,)).problem
            assert problem.startswith(f"{operation} of"), (broken, operation, problem)


# Dtypes of the checks that do not run over all of them, to save time: what they check does not depend on the dtype.
FLOAT, DOUBLE, BRAIN, HALF = kernel_equations.DTYPES
DTYPES = {
    "sgd": (FLOAT, DOUBLE, BRAIN),
    "sgd_layouts": (FLOAT, BRAIN),
    "new_parameters": (FLOAT,),
    "adagrad": (FLOAT, DOUBLE, HALF),
    "scaled": (FLOAT, HALF),
    "device_numbers": (FLOAT, DOUBLE),
    "offset": (FLOAT, BRAIN, HALF),  # the float64 truth is no more exact than float64 kernels
    "moved": (FLOAT, BRAIN),
    "refused": (FLOAT,),
    "optimizer": (FLOAT,),
    "bench": (FLOAT,),
    "self_check": (FLOAT, BRAIN),
    "self_check_operations": (FLOAT,),
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        for dtype in DTYPES.get(name, kernel_equations.DTYPES):
            torch.manual_seed(20200708)
            globals()[f"check_{name}"](dtype)
        print(name, flush=True)
