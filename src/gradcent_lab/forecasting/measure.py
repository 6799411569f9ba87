"""Measure a forecast: train the user's experiment for a few steps without GC and read its gradients.

Every seed trains a fresh copy of the model. Nothing of it reaches the user: random generators are put back, and a
model object that the experiment's function keeps for itself is copied first.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradcent_lab.data import random_streams
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.forecasting.curvature import ITERATIONS
from gradcent_lab.forecasting.gradient_share import GradientShare
from gradcent_lab.forecasting.result import Forecast, LayerForecast
from gradcent_lab.forecasting.training_copy import TrainingCopy

STEPS, SEEDS = 60, 3
MOST_PASSES = 200  # forward and backward passes over all seeds, for models of any size


def forecast(
    experiment: Experiment,
    *,
    steps: int = STEPS,
    seeds: int = SEEDS,
    curvature: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Forecast:
    """Train copies of the experiment's model without GC for a few steps and return what that says about GC.

    progress: called with (steps done, steps in all).

    >>> data = torch.utils.data.TensorDataset(torch.rand(64, 3), torch.randint(2, (64,)))
    >>> experiment = Experiment(
    ...     name="example",
    ...     model=lambda: nn.Linear(3, 2),
    ...     train_data=data,
    ...     eval_data=data,
    ...     loss=nn.functional.cross_entropy,
    ...     metric=lambda output, target: output.argmax(1) == target,
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     epochs=2,
    ...     batch_size=16,
    ... )
    >>> result = forecast(experiment, steps=4, seeds=1)
    >>> 0 < result.removed < 1
    True
    """
    if steps < 1 or seeds < 1:
        raise UserError(f"a forecast needs 1 or more steps and seeds, not {steps} and {seeds}")
    passes = MOST_PASSES - (
        2 * ITERATIONS if curvature else 0
    )  # a Hessian-vector product costs about one pass
    steps = min(steps, max(1, passes // seeds))
    results = []
    for seed in range(seeds):
        done = seed * steps
        step_done = None if progress is None else lambda step, done=done: progress(done + step, seeds * steps)
        with random_streams.seeded(seed, "forecast"):
            results.append(TrainingCopy(experiment, seed, steps).read(step_done))
    first = results[0]
    shares = [result.share for result in results]
    measured = Forecast(
        name=experiment.name,
        removed=statistics.fmean(share.mean for share in shares),
        removed_std=_spread([share.mean for share in shares]),
        explained=first.explained,
        layers=tuple(_layer(entry, shares) for entry in first.entries if entry.name in shares[0].layers),
        steps=steps,
        seeds=seeds,
        centralized=first.plan.summary().splitlines()[0],
        unseen=first.unseen,
    )
    if not curvature:
        return measured
    with random_streams.seeded(0, "forecast"):
        ratio, note = TrainingCopy(experiment, 0, 1).curvature()
    return replace(measured, curvature=ratio, curvature_note=note)


def _layer(entry: Any, shares: Sequence[GradientShare]) -> LayerForecast:
    readings = [share.layer(entry.name) for share in shares if entry.name in share.layers]
    removed = [reading[0] for reading in readings]
    energy = statistics.fmean(reading[1] for reading in readings)
    return LayerForecast(
        entry.name, entry.module, entry.role, entry.level, statistics.fmean(removed), _spread(removed), energy
    )


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
