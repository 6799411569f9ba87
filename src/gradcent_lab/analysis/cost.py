"""What a study costs: runs, training images, operations, and hours from earlier runs or from the operations.

torch counts the operations on a network without memory (device "meta"), forward and backward. How fast a machine
performs them is only roughly known before something has run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradcent_lab import store
from gradcent_lab.data.datasets import SETS
from gradcent_lab.experiment.study import Cell, Study

GPU_FLOPS = 10e12  # operations per second that a data centre GPU reaches on such networks in float32
FORWARD_AND_BACKWARD = 3  # in units of the forward pass


def count_runs(study: Study) -> int:
    """Return the number of runs of a study."""
    return sum(_runs_of_cell(study, cell) for cell in study.cells)


def count_images(study: Study) -> int:
    """Return the training images that all runs of a study see."""
    return sum(_runs_of_cell(study, cell) * _images_per_run(cell) for cell in study.cells)


def count_operations(study: Study) -> float | None:
    """Return the operations of all training, or None if a cell is not an image classifier of the lab."""
    total = 0.0
    for cell in study.cells:
        data, spec = cell.settings.get("data"), cell.settings.get("model")
        if not data or not isinstance(spec, Mapping) or "name" not in spec:
            return None
        images = _runs_of_cell(study, cell) * _images_per_run(cell)
        per_image = forward(spec, SETS[data["set"]].classes, data.get("size", 32))
        total += images * FORWARD_AND_BACKWARD * per_image
    return total


def _runs_of_cell(study: Study, cell: Cell) -> int:
    return len(cell.arms or study.arms) * len(study.seeds)


def _images_per_run(cell: Cell) -> int:
    data = cell.settings.get("data")
    if not data:
        return 0
    size: int = data.get("train") or SETS[data["set"]].images["train"]
    return int(cell.settings["epochs"]) * size


def forward(spec: Mapping[str, Any], classes: int, pixels: int) -> float:
    """Count the operations of one image through a network."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from gradcent_lab import models

    plain = {key: value for key, value in spec.items() if key != "pretrained"}
    with torch.device("meta"):
        model = models.make(plain, classes).eval()
        image = torch.empty(1, 3, pixels, pixels)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return float(counter.get_total_flops())


def throughput(root: Path) -> dict[tuple[str, str], float]:
    """Return the mean training images per second of the finished runs, by study and scale."""
    rates: dict[tuple[str, str], list[float]] = {}
    for record in store.load(root) if root.is_dir() else []:
        seen = [line["samples_per_second"] for line in record.curves if "samples_per_second" in line]
        if seen:
            rates.setdefault((record.study, record.scale), []).append(sum(seen) / len(seen))
    return {key: sum(values) / len(values) for key, values in rates.items()}


def words(study: Study, rate: float | None) -> str:
    """Return the cost in words; `rate` is the mean training images per second of its finished runs."""
    images = count_images(study)
    parts = [f"{count_runs(study)} runs"]
    if images:
        parts.append(f"{images:,} training images in total")
        if rate:
            parts.append(f"{hours(images / rate)} at the {rate:,.0f} images/s of the finished runs")
        elif operations := count_operations(study):
            parts.append(
                f"{operations:.1e} operations: roughly {hours(operations / GPU_FLOPS)} on a GPU at "
                f"{GPU_FLOPS / 1e12:.0f} TFLOP/s, or {hours(operations / _cpu_flops())} on this processor"
            )
    return ", ".join(parts)


def hours(seconds: float) -> str:
    """Return a duration in a readable unit.

    >>> hours(20), hours(600), hours(9000), hours(400_000), hours(1e8)
    ('under a minute', '10 minutes', '2.5 hours', '4.6 days', '3.2 years')
    """
    if seconds < 60:
        return "under a minute"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    for most, unit, name in ((48, 3600, "hours"), (730, 86_400, "days")):
        if seconds < most * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / 31_557_600:,.1f} years"


def _cpu_flops() -> float:
    """Measure the operations per second of a convolution on this processor, in 0.2 seconds."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        images, weight = torch.randn(16, 64, 32, 32), torch.randn(64, 64, 3, 3)
        torch.conv2d(images, weight, padding=1)
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < 0.2:
            torch.conv2d(images, weight, padding=1)
            done += 1
        spent = time.perf_counter() - began
    return done * 2 * 16 * 64 * 64 * 9 * 32 * 32 / spent
