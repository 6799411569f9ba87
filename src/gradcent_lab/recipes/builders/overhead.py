"""Overhead: training steps on random images, timed one by one after a warm-up.

Every run trains three equal networks, a step of the one after a step of the other, so that the ratios of their times
do not depend on what else the machine does. All have torch's fused SGD. In the arm with GC they are

    ""          with GC, centralized by torch's list operations before torch's fused step
    default_    with GC as `attach` does it by default: one fused step of gradcent's own
    reference_  without GC

by the prefixes of their times. In the arm without GC none of them has it: the ratios show the noise.

The result is the first one's median step times the steps of an epoch of 50,000 images.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import gradcent
from gradcent_lab import models
from gradcent_lab.data.random_streams import seed_everything
from gradcent_lab.experiment import optimizers
from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.experiment.spec import Measurement

WARM_UP = 3  # steps that build state and pick kernels


def measure(settings: Mapping[str, Any], seed: int, arm: Arm) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds of an epoch and the times of every step of each network."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = settings["batch_size"]
    seed_everything(seed, "data")
    images = torch.randn(size, 3, 32, 32, device=device)
    labels = torch.randint(0, 100, (size,), device=device)
    options = attach_options(settings, arm)
    networks = {name: _network(settings, seed, attach, device) for name, attach in options.items()}
    orders = itertools.cycle(
        itertools.permutations(networks)
    )  # each is first, and behind each other, as often
    rows = []
    for step in range(settings["steps"] + WARM_UP):
        row: dict[str, Any] = {"step": step - WARM_UP}
        for name in next(orders):
            whole, part = _timed_step(*networks[name], images, labels)
            row |= {f"{name}seconds": whole, f"{name}optimizer_seconds": part}
        rows.append(row)
    rows = rows[WARM_UP:]
    return statistics.median(row["seconds"] for row in rows) * (50_000 // size), rows


def attach_options(settings: Mapping[str, Any], arm: Arm) -> dict[str, Mapping[str, Any] | None]:
    """Return the options of `attach` by the prefix of the times; None for a network without GC."""
    networks: dict[str, Mapping[str, Any] | None] = {
        name: None if arm.attach is None else {**arm.attach, "kernel": kernel}
        for name, kernel in settings["kernels"].items()
    }
    return {**networks, "reference_": None}


def _network(
    settings: Mapping[str, Any], seed: int, attach: Mapping[str, Any] | None, device: torch.device
) -> tuple[nn.Module, torch.optim.Optimizer]:
    seed_everything(seed, "weights")
    model = models.make(settings["model"], 100).to(device)
    # torch's fastest step: against its loop, the speed of gradcent's kernels would hide what GC adds; a small learning
    # rate, because training on random labels must not diverge
    spec = {"name": "SGDM", "lr": 1e-4, "weight_decay": 5e-4, "fused": True}
    optimizer = optimizers.optimizer(spec)(model.parameters())
    if attach is not None:
        gradcent.attach(optimizer, model, **attach)
    return model, optimizer


def _timed_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> tuple[float, float]:
    """Return the seconds of one training step and of its optimizer step."""
    began = _now(images.device)
    optimizer.zero_grad()
    functional.cross_entropy(model(images), labels).backward()
    before = _now(images.device)
    optimizer.step()
    ended = _now(images.device)
    return ended - began, ended - before


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    return Measurement(
        lambda seed, arm: measure(settings, seed, arm), "seconds per epoch", higher_is_better=False
    )
