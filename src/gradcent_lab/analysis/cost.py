"""What a study costs: runs, training images, operations, and hours from earlier runs or from a probe of its networks.

torch counts the operations on a network without memory (device "meta"), forward and backward. Hours at the scale of the
paper are for a GPU; at the other scales they come from real training steps on this processor (`training_speed.py`).
Both kinds of hours count the evaluation after every epoch, and the second one of networks with BatchNorm at the end.
Finished runs that recorded the seconds of the whole run need no such count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcent_lab import store
from gradcent_lab.analysis.training_speed import TrainingSpeed, probe, probe_experiment
from gradcent_lab.data.datasets import SETS
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.experiment.study import HELD_OUT, Cell, Study
from gradcent_lab.store.records import RunRecord

GPU_FLOPS = 10e12  # operations per second that a data centre GPU reaches on such networks in float32
FORWARD_AND_BACKWARD = 3  # in units of the forward pass
CONTROL_BATCHES = (
    50  # training batches over which BatchNorm is re-estimated at the end of a run (run/batch_norm.py)
)


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
            yield Runs(cell, len(arms) * len(study.seeds), train, _with_control(cell, train, test))
            continue
        tuned = sum(arm.name not in tuning.follow for arm in arms)
        grids = [grid for grid in (tuning.grid_of(cell), tuning.beyond_of(cell)) if grid]
        points = sum(math.prod(len(values) for values in grid.values()) for grid in grids)
        kept, held_out = (1 - HELD_OUT) * train, HELD_OUT * train
        held_out = _with_control(cell, kept, held_out)
        yield Runs(cell, tuned * points * len(tuning.seeds), kept, held_out)
        yield Runs(cell, len(arms) * len(study.seeds), train, _with_control(cell, train, test))


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


def count_seconds(study: Study, data: Path | None = None) -> float | None:
    """Return the processor seconds of all runs on one thread, probed here.

    Classifiers of the lab need no data. Other experiments are probed on theirs, and without it the answer is None.
    """
    total = 0.0
    for runs in plan_runs(study):
        speed = _speed(study, runs.cell, data)
        if speed is None:
            return None
        total += runs.count * (runs.train_images / speed.train + runs.eval_images / speed.evaluate)
    return total


def _speed(study: Study, cell: Cell, data: Path | None) -> TrainingSpeed | None:
    operations, settings = _operations(cell), cell.settings
    if operations is not None:
        return probe(
            settings["model"],
            SETS[settings["data"]["set"]].classes,
            settings["data"].get("size", 32),
            settings["batch_size"],
            operations=operations,
            channels_last=study.numerics.channels_last,
            optimizer=settings["optimizer"]["name"],
        )
    try:
        experiment = study.build(settings, data)
    except UserError:  # the data or the pretrained weights are not there
        return None
    return None if isinstance(experiment, Measurement) else probe_experiment(experiment)


def _with_control(cell: Cell, train: float, test: float) -> float:
    """Return the images of all evaluations of a run, with those of BatchNorm's control after the last epoch."""
    model = cell.settings.get("model")
    if not train or not isinstance(model, Mapping) or "name" not in model or model.get("norm", "bn") != "bn":
        return test
    epochs, batch = int(cell.settings["epochs"]), int(cell.settings["batch_size"])
    return test + test / epochs + min(train / epochs, CONTROL_BATCHES * batch)


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


@dataclass(frozen=True)
class SeenSpeed:
    """What finished runs of a study reached: training images per second of one run, and runs at a time.

    whole: the seconds are those of the whole runs, evaluations included; those of runs of earlier versions are of
        training alone.
    """

    images_per_second: float
    at_a_time: int
    whole: bool = False


def throughput(root: Path) -> dict[tuple[str, str], SeenSpeed]:
    """Return the speed of the finished runs, those of the tuning included, by study and scale."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in store.load(root) if root.is_dir() else []:
        if any(line.get("samples_per_second") for line in record.curves):
            groups.setdefault((record.study.removesuffix("-tuning"), record.scale), []).append(record)
    return {key: _seen_speed(records) for key, records in groups.items()}


def _seen_speed(records: Sequence[RunRecord]) -> SeenSpeed:
    """Return all images over all seconds, so that slow cells count as long as they take."""
    timed = [record for record in records if record.wall_seconds is not None]
    if timed:
        seconds = sum(record.wall_seconds or 0.0 for record in timed)
    else:
        seconds = sum(line["seconds"] for line in _trained(records))
    images = sum(line["samples_per_second"] * line["seconds"] for line in _trained(timed or records))
    together = min(_at_a_time(record.environment) for record in records)
    return SeenSpeed(images / max(seconds, 1e-9), together, bool(timed))


def _trained(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the lines of all epochs that were timed."""
    return [line for record in records for line in record.curves if line.get("samples_per_second")]


def _at_a_time(environment: Mapping[str, Any]) -> int:
    """Return how many runs share a machine: `--workers N` gives each of them cores/N threads."""
    cores, threads = environment.get("cores"), environment.get("threads")
    if environment.get("gpus") or type(cores) is not int or type(threads) is not int or threads < 1:
        return 1
    return max(1, cores // threads)


def words(study: Study, seen: SeenSpeed | None, data: Path | None = None) -> str:
    """Return the cost in words; `seen` is the speed of its finished runs."""
    images = count_images(study)
    parts = [f"{count_runs(study)} runs"]
    if shared := sorted({cell.source.study for cell in study.cells if cell.source is not None}):
        parts[0] += (
            f" ({sum(cell.source is not None for cell in study.cells)} cells shared with {', '.join(shared)})"
        )
    if not images:
        return ", ".join(parts)
    parts.append(f"{images:,} training samples in total")
    if seen is not None:
        rate, together = seen.images_per_second, seen.at_a_time
        evaluated = 0.0 if seen.whole else sum(runs.count * runs.eval_images for runs in plan_runs(study))
        seconds = (images + evaluated / FORWARD_AND_BACKWARD) / rate / together
        several = f", {together} at a time" if together > 1 else ""
        included = ", evaluations included" if seen.whole else ""
        parts.append(f"{hours(seconds)} at the {rate:,.0f} images/s of the finished runs{included}{several}")
        return ", ".join(parts)
    operations = count_operations(study)
    if operations:
        parts.append(f"{operations:.1e} operations")
    if study.scale.is_paper:
        if operations:
            gpu = hours(operations / GPU_FLOPS)
            parts.append(f"roughly {gpu} on a GPU at {GPU_FLOPS / 1e12:.0f} TFLOP/s")
    elif probed := count_seconds(study, data):
        parts.append(f"{hours(probed / 2)} on two cores of this processor, one run on each (probed)")
    else:
        parts.append("hours are estimated when its data set is there")
    return ", ".join(parts)


def hours(seconds: float) -> str:
    """Return a duration in a readable unit.

    >>> hours(20), hours(80), hours(600), hours(9000), hours(400_000), hours(1e8)
    ('under a minute', '80 seconds', '10 minutes', '2.5 hours', '4.6 days', '3.2 years')
    """
    if seconds < 60:
        return "under a minute"
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    for most, unit, name in ((48, 3600, "hours"), (730, 86_400, "days")):
        if seconds < most * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / 31_557_600:,.1f} years"
