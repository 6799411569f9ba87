"""Theorems 4.1 and 4.2 checked numerically, with the corrections of their statements.

4.1: under SGD and SGDM with GC the sum of every weight vector keeps its value, so shifting an input by γ1
changes the output by γ1ᵀw⁰; the printed equation has the opposite sign. Adam (at the gradient) and decoupled
decay do not keep it; `at="update"` does for any optimizer.
4.2: centralizing never lengthens the gradient, nor the Hessian in the spectral or Frobenius norm; the largest
value may grow, by at most 2 − 2/M. Hessians are autograd's, of a convolutional network (`conv_theorems`).
The identity P·Σ δ xᵀ = Σ δ (P x)ᵀ for every layout, and the shares that it predicts, are in `identity` and `levels`.
A row is one check: value, bound, and whether it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradcent
from gradcent_lab.data.random_streams import seed_everything
from gradcent_lab.experiment.optimizers import SGDW
from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.recipes.builders import conv_theorems, identity, levels

ROUNDING = 1e-9  # everything is in float64
DECAY = 1e-2


def measure(settings: Mapping[str, Any], seed: int, arm: Arm) -> tuple[float, list[dict[str, Any]]]:
    """Return the number of checks that fail and every check."""
    seed_everything(seed, "theory")
    network_steps = settings.get("network_steps")  # runs of earlier versions have none, and random Hessians
    rows = [
        *theorem_1(settings["steps"]),
        *theorem_2(settings["gradients"], random_hessians=network_steps is None),
        *(network_rows(network_steps) if network_steps is not None else ()),
        *identity_rows(),
        *(_row(check, value, bound, value <= bound) for check, value, bound in levels.rows()),
    ]
    return float(sum(not row["holds"] for row in rows)), rows


def theorem_1(steps: int) -> list[dict[str, Any]]:
    """Train with several optimizers; compare the weight sums with what the theory says of each."""

    def sgd(momentum: float, decay: float) -> Callable[..., torch.optim.Optimizer]:
        return lambda p: torch.optim.SGD(p, lr=0.05, momentum=momentum, weight_decay=decay)

    kept: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
        "SGD keeps the sums": (sgd(0, 0), {}),
        "SGDM keeps the sums": (sgd(0.9, 0), {}),
        "SGDM with P(g + λw) keeps the sums": (sgd(0.9, DECAY), {}),
        "Adam at the update keeps the sums": (lambda p: torch.optim.Adam(p, lr=1e-2), {"at": "update"}),
        "AdamW at the update keeps the sums": (lambda p: torch.optim.AdamW(p, lr=1e-2), {"at": "update"}),
    }
    rows = []
    for words, (factory, options) in kept.items():
        before, after, change = _train(factory, options, steps)
        drift = float((after - before).abs().max())
        rows.append(_row("4.1 " + words, drift, ROUNDING, drift <= ROUNDING))
        if words.startswith("SGDM keeps"):
            # wᵀ(x + γ1) − wᵀx = γ1ᵀw⁰: the sign that holds, against the printed one
            right, printed = (float((change - sign * before).abs().max()) for sign in (1.0, -1.0))
            rows.append(
                _row("4.1 a shift by γ1 changes the output by +γ1ᵀw⁰", right, ROUNDING, right <= ROUNDING)
            )
            rows.append(
                _row("4.1 with the printed sign it does not", printed, ROUNDING, printed > ROUNDING, ">")
            )
    before, after, _ = _train(lambda p: torch.optim.Adam(p, lr=1e-2), {}, steps)
    drift = float((after - before).abs().max())
    rows.append(
        _row("4.1 Adam at the gradient does not keep the sums", drift, ROUNDING, drift > ROUNDING, ">")
    )
    before, after, _ = _train(
        lambda p: SGDW(p, lr=0.05, momentum=0.9, weight_decay=DECAY), {"decay": "decoupled"}, steps
    )
    off = float((after - before * (1 - 0.05 * DECAY) ** steps).abs().max())
    rows.append(_row("4.1 SGDW shrinks the sums by (1 − lr·λ)ᵗ", off, ROUNDING, off <= ROUNDING))
    return rows


def _train(
    factory: Callable[..., torch.optim.Optimizer], options: Mapping[str, Any], steps: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sums of the first layer's weight vectors before and after, and its response to a shift by 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.initial_seed() % 2**31))
        model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        inputs = torch.randn(64, 12, dtype=torch.float64)
        targets = torch.randint(0, 3, (64,))
    first = model[0]
    assert isinstance(first, nn.Linear)
    optimizer = factory(model.parameters())
    gradcent.attach(optimizer, model, **options)
    before = first.weight.detach().sum(1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        change = (first(inputs + 1) - first(inputs))[0]
    return before, first.weight.detach().sum(1), change


def theorem_2(gradients: int, *, random_hessians: bool) -> list[dict[str, Any]]:
    """Compare norms before and after on random gradients, and the extreme case of the maximum."""
    layout = gradcent.Layout(1, 1, 4, 16)
    norm_ratio, max_ratio, spectral, frobenius = 0.0, 0.0, 0.0, 0.0
    projection = torch.eye(16, dtype=torch.float64) - torch.ones(16, 16, dtype=torch.float64) / 16
    for _ in range(gradients):
        gradient = torch.randn(4, 16, dtype=torch.float64) + torch.randn(4, 1, dtype=torch.float64)
        rest = gradcent.centralize(gradient, layout)
        norm_ratio = max(norm_ratio, float((rest.norm(dim=1) / gradient.norm(dim=1)).max()))
        max_ratio = max(max_ratio, float((rest.abs().amax(1) / gradient.abs().amax(1)).max()))
        if not random_hessians:
            continue
        root = torch.randn(16, 16, dtype=torch.float64)
        hessian = root + root.T
        projected = projection @ hessian
        spectral = max(
            spectral, float(torch.linalg.matrix_norm(projected, 2) / torch.linalg.matrix_norm(hessian, 2))
        )
        frobenius = max(frobenius, float(projected.norm() / hessian.norm()))
    one, limit = 1 + ROUNDING, 2 - 2 / 16
    worst = torch.ones(1, 16, dtype=torch.float64)
    worst[0, 0] = -1.0
    grown = float(gradcent.centralize(worst, gradcent.Layout(1, 1, 1, 16)).abs().max())
    hessian_rows = [
        _row("4.2b ‖PH‖ ≤ ‖H‖ in the spectral norm", spectral, one, spectral <= one),
        _row("4.2b ‖PH‖ ≤ ‖H‖ in the Frobenius norm", frobenius, one, frobenius <= one),
    ]
    return [
        _row("4.2a ‖Φ(g)‖ ≤ ‖g‖", norm_ratio, one, norm_ratio <= one),
        *(hessian_rows if random_hessians else ()),
        _row("the largest value grows by at most 2 − 2/M", max_ratio, limit, max_ratio <= limit),
        _row("and that bound is reached", grown, limit, abs(grown - limit) <= ROUNDING, "="),
    ]


def network_rows(steps: int) -> list[dict[str, Any]]:
    """Check both theorems on a convolutional network: the response to a shift, and autograd's Hessians."""
    moved, one = conv_theorems.measure_shift(steps), 1 + ROUNDING
    on, off = moved["with GC"], moved["without GC"]
    rows = [
        _row(
            f"4.1 convolution, {steps:,} steps: the response to a shift stays", on, ROUNDING, on <= ROUNDING
        ),
        _row("4.1 convolution: without GC it does not", off, ROUNDING, off > ROUNDING, ">"),
    ]
    for layer, name in (("0.weight", "convolution"), ("4.weight", "linear")):
        found = conv_theorems.measure_hessian(layer)
        seen = f"4.2b {name}, autograd's Hessian H:"
        error = found["error"]
        rows.append(_row(f"{seen} the centralized gradient's is PH", error, ROUNDING, error <= ROUNDING))
        for norm, words in (("spectral", "spectral"), ("frobenius", "Frobenius")):
            ratio = found[norm]
            rows.append(_row(f"{seen} ‖PH‖ ≤ ‖H‖, {words} norm", ratio, one, ratio <= one))
    return rows


def identity_rows() -> list[dict[str, Any]]:
    """Compare the centralized gradient with the gradient from centered inputs, layout by layout."""
    rows = []
    for name in identity.CASES:
        value = identity.largest_difference(name)
        rows.append(
            _row(f"P·Σ δ xᵀ = Σ δ (P x)ᵀ, {name}", value, identity.ROUNDING, value <= identity.ROUNDING)
        )
    return rows


def _row(check: str, value: float, bound: float, holds: bool, relation: str = "≤") -> dict[str, Any]:
    return {"check": check, "value": value, "bound": bound, "holds": holds, "relation": relation}


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    return Measurement(
        lambda seed, arm: measure(settings, seed, arm), "failed checks", higher_is_better=False
    )
