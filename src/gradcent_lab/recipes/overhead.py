"""Overhead: seconds of an epoch with and without GC (section 3.4: 0.6 of 71 s, 0.85 %, for ResNet-50 on CIFAR-100).

Training steps on random images, timed one by one after a warm-up; the headline is the median step times the
steps of an epoch of 50,000 images.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from gradcent_lab import models
from gradcent_lab.data.random_streams import seed_everything
from gradcent_lab.experiment import optimizers
from gradcent_lab.experiment.run_config import OFF, ON, Arm
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.experiment.study import Cell, Scale, Study
from gradcent_lab.recipes.recipe import Recipe

SCALES = (
    Scale("paper", "the paper's: ResNet-50 for CIFAR-100, batch 128, 200 steps, 5 repetitions"),
    Scale("small", "ResNet-18 of width 32, batch 32, 30 steps, 3 repetitions"),
    Scale("smoke", "ResNet-8 of width 8, batch 8, 5 steps: shows that it runs, nothing else"),
)
SIZES: dict[str, dict[str, Any]] = {
    "paper": {"model": {"name": "R50"}, "batch_size": 128, "steps": 200},
    "small": {"model": {"name": "R18", "width": 32}, "batch_size": 32, "steps": 30},
    "smoke": {"model": {"name": "R8", "width": 8}, "batch_size": 8, "steps": 5},
}
SEEDS = {"paper": tuple(range(5)), "small": (0, 1, 2), "smoke": (0,)}


def measure(settings: Mapping[str, Any], seed: int, arm: Arm) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds of an epoch and the time of every step."""
    import gradcent

    seed_everything(seed, "weights")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = models.make(settings["model"], 100).to(device)
    size = settings["batch_size"]
    images = torch.randn(size, 3, 32, 32, device=device)
    labels = torch.randint(0, 100, (size,), device=device)
    spec = {"name": "SGDM", "lr": 1e-4, "weight_decay": 5e-4}  # small, so that random labels do not diverge
    optimizer = optimizers.optimizer(spec)(model.parameters())
    if arm.attach is not None:
        gradcent.attach(optimizer, model, **arm.attach)
    seconds = []
    for _ in range(settings["steps"] + 3):
        began = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        before = _now(device)
        optimizer.step()
        ended = _now(device)
        seconds.append((ended - began, ended - before))
    kept = seconds[3:]  # the first ones build state and pick kernels
    rows = [{"step": n, "seconds": whole, "optimizer_seconds": part} for n, (whole, part) in enumerate(kept)]
    epoch = statistics.median(whole for whole, _ in kept) * (50_000 // size)
    return epoch, rows


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    return Measurement(
        "overhead", lambda seed, arm: measure(settings, seed, arm), "seconds an epoch", False, settings
    )


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    size = SIZES[scale]
    cell = Cell(size["model"]["name"], {"name": "overhead", **size})
    return Study("overhead", RECIPE.title, RECIPE.scale(scale), (cell,), (OFF, ON), SEEDS[scale], build)


RECIPE = Recipe("overhead", "Seconds of an epoch with and without GC", "section 3.4", SCALES, make)
