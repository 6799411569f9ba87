"""What a study would cost: runs, training images, arithmetic, and hours from what was seen or from the arithmetic.

The arithmetic is counted by torch on a network without memory (device "meta"), forward and backward, so it is
the network's own and takes a second; what a machine makes of it is only roughly known before something has run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

GPU = 10e12  # operations a second that a data centre's GPU does in practice on such networks, in float32
BACKWARD = 3  # forward and backward together, in units of the forward pass


def count(study: Any) -> dict[str, int]:
    """Count a study's runs and the training images they see."""
    from gradcent_lab.data import SETS

    runs = images = 0
    for cell in study.cells:
        number = len(cell.arms or study.arms) * len(study.seeds)
        runs += number
        data = cell.settings.get("data")
        if data:
            size = data.get("train") or SETS[data["set"]].images["train"]
            images += number * cell.settings["epochs"] * size
    return {"runs": runs, "images": images}


def arithmetic(study: Any) -> float | None:
    """Return the operations of all training, or None where a cell is no image classifier of the lab's."""
    from gradcent_lab.data import SETS

    total = 0.0
    for cell in study.cells:
        data, spec = cell.settings.get("data"), cell.settings.get("model")
        if not data or not isinstance(spec, Mapping) or "name" not in spec:
            return None
        size = data.get("train") or SETS[data["set"]].images["train"]
        number = len(cell.arms or study.arms) * len(study.seeds) * cell.settings["epochs"] * size
        total += number * BACKWARD * forward(spec, SETS[data["set"]].classes, data.get("size", 32))
    return total


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
    from gradcent_lab.store import records as store

    rates: dict[tuple[str, str], list[float]] = {}
    for record in store.load(root) if root.is_dir() else []:
        seen = [line["samples_per_second"] for line in record.curves if "samples_per_second" in line]
        if seen:
            rates.setdefault((record.study, record.scale), []).append(sum(seen) / len(seen))
    return {key: sum(values) / len(values) for key, values in rates.items()}


def words(study: Any, rate: float | None) -> str:
    """Return the cost in words; `rate` is the images a second that its finished runs saw here."""
    total = count(study)
    parts = [f"{total['runs']} runs"]
    if total["images"]:
        parts.append(f"{total['images']:,} training images in all")
        if rate:
            parts.append(f"{hours(total['images'] / rate)} at the {rate:,.0f} images/s seen here")
        elif work := arithmetic(study):
            parts.append(
                f"{work:.1e} operations: {hours(work / GPU)} on a GPU at {GPU / 1e12:.0f} TFLOP/s, or "
                f"{hours(work / _here())} on this processor, roughly"
            )
    return ", ".join(parts)


def hours(seconds: float) -> str:
    """Return a time in the unit one would say it in.

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


def _here() -> float:
    """Measure the operations a second of a convolution on this processor, for a fraction of a second."""
    import time

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
