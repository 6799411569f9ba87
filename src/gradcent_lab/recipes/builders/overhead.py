"""Overhead: training steps on random images, timed one by one after a warm-up.

The result is the median step times the steps of an epoch of 50,000 images.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import gradcent
from gradcent_lab import models
from gradcent_lab.data.random_streams import seed_everything
from gradcent_lab.experiment import optimizers
from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.experiment.spec import Measurement


def measure(settings: Mapping[str, Any], seed: int, arm: Arm) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds of an epoch and the time of every step."""
    seed_everything(seed, "weights")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = models.make(settings["model"], 100).to(device)
    size = settings["batch_size"]
    images = torch.randn(size, 3, 32, 32, device=device)
    labels = torch.randint(0, 100, (size,), device=device)
    # torch's fused step in both arms: against its loop, the speed of gradcent's kernels would hide what GC adds
    spec = {
        "name": "SGDM",
        "lr": 1e-4,
        "weight_decay": 5e-4,
        "fused": True,
    }  # lr: random labels must not diverge
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
        lambda seed, arm: measure(settings, seed, arm), "seconds per epoch", higher_is_better=False
    )
