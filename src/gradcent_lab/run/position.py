"""The position of a run: what a checkpoint stores besides the state dicts, and the result that it ends with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gradcent_lab.experiment.spec import Experiment


@dataclass
class Position:
    """How far a run is, and what it has measured."""

    epoch: int  # the one being trained
    step: int  # steps of it that are done
    lr: float  # at its beginning
    curves: list[dict[str, Any]]
    iterations: list[dict[str, float]]
    seconds: float  # spent in this epoch
    total_seconds: float
    initial_weights: str
    batches: str = ""  # hashes of the first batches of this epoch
    wall_seconds: float = 0.0  # of the whole run when the checkpoint was written
    processor_seconds: float = 0.0

    def problem(self, epochs: int, steps: int) -> str | None:
        """Return what cannot be true of a run of `epochs` epochs of `steps` steps; None if all is well."""
        if not (type(self.epoch) is int and 0 <= self.epoch <= epochs):
            return f"epoch {self.epoch} of {epochs}"
        if not (type(self.step) is int and 0 <= self.step <= steps):
            return f"step {self.step} of {steps}"
        if not isinstance(self.curves, list) or not isinstance(self.iterations, list):
            return "its curves are not lists"
        if [line.get("epoch") for line in self.curves] != list(range(1, self.epoch + 1)):
            return f"{len(self.curves)} lines of curves in epoch {self.epoch}"
        if self.iterations and len(self.iterations) != self.epoch * steps + self.step:
            return f"{len(self.iterations)} iterations instead of {self.epoch * steps + self.step}"
        return None

    def result(self, experiment: Experiment, *, diverged: str | None = None) -> dict[str, Any]:
        """Return the result of a finished run; one that diverged counts as such and has no metric."""
        common = {
            "metric_name": experiment.metric_name,
            "metrics": list(experiment.metrics),
            "higher_is_better": experiment.higher_is_better,
            "initial_weights": self.initial_weights,
            "seconds": round(self.total_seconds + (self.seconds if diverged else 0.0), 3),
        }
        if diverged is not None:
            return {"best": math.nan, "best_epoch": 0, "last": math.nan, "diverged": diverged, **common}
        values = [line["eval_metric"] for line in self.curves]
        sign = 1.0 if experiment.higher_is_better else -1.0
        best = max(range(len(values)), key=lambda i: sign * values[i])
        return {"best": values[best], "best_epoch": best + 1, "last": values[-1], **common}
