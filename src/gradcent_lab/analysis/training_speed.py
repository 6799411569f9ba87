"""How fast a network trains and evaluates on one core of this machine: a short probe of real training steps.

Processor time is measured, not wall time, so that other programs do not distort the estimate. The probe uses the batch
size of the study where a step is short enough, and smaller batches for large networks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gradcent_lab.experiment.run_config import canonical

PROBE_SECONDS = 1.0  # of training and of evaluation each, besides one step that warms up
STEP_OPERATIONS = 6e10  # a larger step is probed with a smaller batch


@dataclass(frozen=True)
class TrainingSpeed:
    """Images per second of processor time on one thread."""

    train: float
    evaluate: float


def probe(
    spec: Mapping[str, Any],
    classes: int,
    pixels: int,
    batch_size: int,
    *,
    operations: float,
    channels_last: bool,
) -> TrainingSpeed:
    """Measure a network; `operations` are those of one image forward and backward. Equal questions are asked once."""
    batch = max(2, min(batch_size, int(STEP_OPERATIONS / max(operations, 1.0))))
    plain = {key: value for key, value in spec.items() if key != "pretrained"}
    return _probe(canonical(plain), classes, pixels, batch, channels_last)


@lru_cache(maxsize=64)
def _probe(spec_text: str, classes: int, pixels: int, batch: int, channels_last: bool) -> TrainingSpeed:
    import json

    import torch
    from torch.nn import functional

    from gradcent_lab import models

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            model = models.make(json.loads(spec_text), classes)
            images = torch.randn(batch, 3, pixels, pixels)
            labels = torch.randint(0, classes, (batch,))
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
            images = images.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

        def evaluate() -> None:
            with torch.no_grad():
                model(images)

        train = batch / _seconds(step)
        model.eval()
        return TrainingSpeed(train, batch / _seconds(evaluate))
    finally:
        torch.set_num_threads(threads)


def _seconds(work: Callable[[], None]) -> float:
    """Mean processor seconds of one call."""
    work()
    began, calls = time.process_time(), 0
    while time.process_time() - began < PROBE_SECONDS:
        work()
        calls += 1
    return (time.process_time() - began) / calls
