"""Campaign 7: random tensors, models and optimizers against the paper's equations in float64.

The truth is tests/equations.py, which picks weight vectors out one by one and uses nothing of gradcent. Six of
ten cases call the operator on random layouts, dtypes, strides and scales; two compare the plan of a random
module with the weight vectors of its definition; two take a step of an attached optimizer beside torch's own
optimizer with gradients centralized by the truth.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import gradcent
from gradcent.layout import Layout

from .common import ROOT, Campaign, Figures, Session

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64)


def run(session: Session) -> None:
    """Try cases until the session ends."""
    sys.path.insert(0, str(ROOT / "tests"))
    torch.set_num_threads(1)
    figures, rng = session.figures, session.rng()
    torch.manual_seed(rng.getrandbits(63))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while session.goes_on():
            _try(KINDS[figures.tried % len(KINDS)], figures, rng)


def _try(kind: Callable[[random.Random], tuple[str, str]], figures: Figures, rng: random.Random) -> None:
    figures.tried += 1
    try:
        name, problem = kind(rng)
    except Exception as error:
        figures.fail("crashed", f"{kind.__name__} case {figures.tried}: {type(error).__name__}: {error}")
        return
    figures.count(name)
    if problem:
        figures.fail("wrong", f"case {figures.tried}: {name}: {problem}")


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, rng: random.Random) -> Tensor:
    """Random values of a random scale, sometimes with an offset, zeros or a constant, sometimes strided."""
    largest = 3 if dtype == torch.float16 else 18
    scale = 10.0 ** rng.randint(-3, largest if rng.random() < 0.2 else 2)
    strided = bool(shape) and rng.random() < 0.25
    wide = (*shape[:-1], 2 * shape[-1]) if strided else shape
    kind = torch.complex128 if dtype.is_complex else torch.float64
    values = torch.randn(wide, dtype=kind) + rng.choice((0.0, 0.0, 1.0, 100.0))
    if rng.random() < 0.1:
        values = torch.full_like(values, 1.0)
    values = (values / 100 * scale if dtype == torch.float16 else values * scale).to(dtype)
    return values[..., ::2] if strided else values


def _operator(rng: random.Random) -> tuple[str, str]:
    """`centralize` on a random layout."""
    shape = tuple(rng.randint(1, 7) for _ in range(rng.randint(2, 5)))
    if rng.random() < 0.05:
        shape = (rng.randint(1, 4), rng.randint(500, 3000))
    name = rng.choice(("rows", "columns", "transposed", "stacked_rows"))
    if name == "stacked_rows" and len(shape) < 3:
        name = "rows"
    groups = rng.choice([g for g in range(1, shape[0] + 1) if shape[0] % g == 0])
    layout = Layout.transposed(shape, groups) if name == "transposed" else getattr(Layout, name)(shape)
    dtype = rng.choice(DTYPES)
    tensor = _tensor(shape, dtype, rng)
    before = tensor.clone()
    result = gradcent.centralize(tensor.contiguous() if rng.random() < 0.5 else tensor, layout)
    if not torch.equal(tensor, before):
        return f"operator, {dtype}", "the input was changed"
    wide = tensor.to(torch.complex128 if dtype.is_complex else torch.float64)
    view = wide.reshape(layout.batch, layout.outer, layout.vectors, layout.inner)
    truth = (view - view.mean((1, 3), keepdim=True)).reshape(shape)
    size = view.abs().amax((1, 3), keepdim=True).expand_as(view).reshape(shape)
    bound = 2.5 * torch.finfo(dtype).eps * size + torch.finfo(dtype).tiny
    if dtype == torch.float64:  # the truth rounds, too
        bound = bound * math.sqrt(layout.length)
    error = (result.to(wide.dtype) - truth).abs()
    return f"operator, {dtype}", "" if bool(
        (error <= bound).all()
    ) else f"{name} {shape}: error {error.max():.3g}"


def _module(rng: random.Random) -> nn.Module:
    """One random module with weights, in float64."""
    a, b, c = (rng.randint(2, 5) for _ in range(3))
    kind = rng.choice(("linear", "bilinear", "conv", "transposed", "attention", "recurrent", "cell", "other"))
    if kind == "linear":
        return nn.Linear(a, b)
    if kind == "bilinear":
        return nn.Bilinear(a, b, c)
    if kind in ("conv", "transposed"):
        rank, groups = rng.randint(1, 3), rng.randint(1, 3)
        family = (
            (nn.Conv1d, nn.Conv2d, nn.Conv3d)
            if kind == "conv"
            else (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        )
        size = tuple(rng.randint(1, 3) for _ in range(rank))
        return family[rank - 1](groups * a, groups * b, size, groups=groups)  # type: ignore[arg-type]
    if kind == "attention":
        return nn.MultiheadAttention(2 * a, 2, kdim=rng.choice((None, b)), add_bias_kv=rng.random() < 0.5)
    if kind == "recurrent":
        return rng.choice((nn.RNN, nn.LSTM, nn.GRU))(a, b, num_layers=rng.randint(1, 2))
    if kind == "cell":
        return rng.choice((nn.RNNCell, nn.LSTMCell, nn.GRUCell))(a, b)
    return nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.BatchNorm1d(b), nn.Embedding(c, a), nn.PReLU())


def _plan(rng: random.Random) -> tuple[str, str]:
    """The plan of a random module beside the weight vectors of its definition."""
    import equations

    model = _module(rng).double()
    plan = gradcent.explain(model, min_length=2)
    for parameter, find in equations.finders(model):
        layout = plan.layout(parameter)
        vectors = find(parameter.detach())
        if (layout is None) != (not vectors):
            return (
                "plan",
                f"{type(model).__name__} {tuple(parameter.shape)}: {layout} but {len(vectors)} vectors",
            )
        if layout is not None:
            gradient = torch.randn_like(parameter)
            truth = equations.centralize(gradient, find)
            if not torch.allclose(gradcent.centralize(gradient, layout), truth, rtol=0, atol=1e-13):
                return "plan", f"{type(model).__name__} {tuple(parameter.shape)}: wrong weight vectors"
    return "plan", ""


def _optimizer(rng: random.Random) -> tuple[type, dict[str, Any]]:
    decay = rng.choice((0.0, 0.0, 0.1, 1.0))
    kind = rng.choice(("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam"))
    options: dict[str, Any] = {"lr": 10.0 ** rng.uniform(-4, -1), "weight_decay": decay}
    if kind == "SGD" and rng.random() < 0.7:
        options |= {"momentum": rng.choice((0.5, 0.9)), "nesterov": rng.random() < 0.5}
    if kind != "Adagrad":
        options["foreach"] = rng.choice((None, True, False))
    return getattr(torch.optim, kind), options


def _step(rng: random.Random) -> tuple[str, str]:
    """Two steps of an attached optimizer beside torch's with gradients centralized by the truth."""
    import equations

    model = _module(rng).double()
    twin = copy.deepcopy(model)
    kind, options = _optimizer(rng)
    optimizer, reference = kind(model.parameters(), **options), kind(twin.parameters(), **options)
    if not any(find(p.detach()) for p, find in equations.finders(model)):
        return f"step, {kind.__name__}, nothing to centralize", ""
    gradcent.attach(optimizer, model, min_length=2)
    decay = 0.0 if kind is torch.optim.AdamW else options["weight_decay"]
    for _ in range(2):
        for one, two in zip(model.parameters(), twin.parameters(), strict=True):
            one.grad = torch.randn_like(one) * 10.0 ** rng.randint(-2, 2)
            two.grad = one.grad.clone()
        equations.centralize_gradients(twin, decay)
        optimizer.step()
        reference.step()
    worst = max(
        float((one - two).detach().abs().max() / (1e-12 + two.detach().abs().max()))
        for one, two in zip(model.parameters(), twin.parameters(), strict=True)
    )
    # Adam divides by the root of a sum of squares: rounding errors of tiny gradients grow
    return f"step, {kind.__name__}", "" if worst < 1e-7 else f"{options}: relative error {worst:.3g}"


KINDS = (_operator,) * 6 + (_plan,) * 2 + (_step,) * 2

CAMPAIGN = Campaign(
    "fuzz",
    "random tensors, modules and optimizer steps against the equations in float64",
    run,
    target=100_000,
    short=500,
)
