"""What a study costs: runs, training images, operations, and hours from earlier runs or from a probe of its networks.

torch counts the operations on a network without memory (device "meta"), forward and backward. Hours at the scale of the
paper are for a GPU; at the other scales they come from real training steps on this processor (`training_speed.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcent_lab import store
from gradcent_lab.analysis.training_speed import probe
from gradcent_lab.data.datasets import SETS
from gradcent_lab.experiment.study import HELD_OUT, Cell, Study

GPU_FLOPS = 10e12  # operations per second that a data centre GPU reaches on such networks in float32
FORWARD_AND_BACKWARD = 3  # in units of the forward pass


@dataclass(frozen=True)
class Runs:
    """Equal runs of one cell: how many, and the images that each trains on and is evaluated on in all its epochs."""

    cell: Cell
    count: int
    train_images: float
    eval_images: float


def plan_runs(study: Study) -> Iterator[Runs]:
    """Yield the runs of a study, those of its tuning first."""
    tuning = study.scale.tuning
    for cell in study.cells:
        arms, train, test = cell.arms or study.arms, _images(cell, "train"), _images(cell, "test")
        if tuning is None:
            yield Runs(cell, len(arms) * len(study.seeds), train, test)
            continue
        followers = sum(arm.name in tuning.follow for arm in arms)
        tuned = len(arms) - followers
        points = math.prod(len(values) for values in tuning.grid.values())
        yield Runs(cell, tuned * points * len(tuning.seeds), (1 - HELD_OUT) * train, HELD_OUT * train)
        later = len(study.seeds[: tuning.follow_seeds])
        yield Runs(cell, tuned * len(study.seeds) + followers * later, train, test)


def count_runs(study: Study) -> int:
    """Return the number of runs of a study, tuning included."""
    return sum(runs.count for runs in plan_runs(study))


def count_images(study: Study) -> int:
    """Return the training images that all runs of a study see."""
    return round(sum(runs.count * runs.train_images for runs in plan_runs(study)))


def count_operations(study: Study) -> float | None:
    """Return the operations of all training, or None if a cell is not an image classifier of the lab."""
    total = 0.0
    for runs in plan_runs(study):
        per_image = _operations(runs.cell)
        if per_image is None:
            return None
        total += runs.count * runs.train_images * per_image
    return total


def count_seconds(study: Study) -> float | None:
    """Return the processor seconds of all runs on one thread, probed here; None where `count_operations` is None."""
    total = 0.0
    for runs in plan_runs(study):
        operations = _operations(runs.cell)
        if operations is None:
            return None
        settings = runs.cell.settings
        speed = probe(
            settings["model"],
            SETS[settings["data"]["set"]].classes,
            settings["data"].get("size", 32),
            settings["batch_size"],
            operations=operations,
            channels_last=study.numerics.channels_last,
        )
        total += runs.count * (runs.train_images / speed.train + runs.eval_images / speed.evaluate)
    return total


def _images(cell: Cell, split: str) -> int:
    """Images of a split over all epochs of a run."""
    data = cell.settings.get("data")
    if not data:
        return 0
    size: int = data.get("train" if split == "train" else "eval") or SETS[data["set"]].images[split]
    return int(cell.settings["epochs"]) * size


def _operations(cell: Cell) -> float | None:
    """Operations of one training image, or None if the cell is not an image classifier of the lab."""
    data, spec = cell.settings.get("data"), cell.settings.get("model")
    if not data or not isinstance(spec, Mapping) or "name" not in spec:
        return None
    return FORWARD_AND_BACKWARD * forward(spec, SETS[data["set"]].classes, data.get("size", 32))


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
    if shared := sorted({cell.source.study for cell in study.cells if cell.source is not None}):
        parts[0] += (
            f" ({sum(cell.source is not None for cell in study.cells)} cells shared with {', '.join(shared)})"
        )
    if images:
        parts.append(f"{images:,} training images in total")
        if rate:
            parts.append(f"{hours(images / rate)} at the {rate:,.0f} images/s of the finished runs")
        elif operations := count_operations(study):
            parts.append(f"{operations:.1e} operations")
            if study.scale.is_paper:
                gpu = hours(operations / GPU_FLOPS)
                parts.append(f"roughly {gpu} on a GPU at {GPU_FLOPS / 1e12:.0f} TFLOP/s")
            elif seconds := count_seconds(study):
                parts.append(f"{hours(seconds / 2)} on two cores of this processor, one run on each (probed)")
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
