"""One task of the forecast's calibration; a row is one run. The result is the change of the training loss with GC."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.forecasting.calibration.outcomes import outcome
from gradcent_lab.forecasting.calibration.study import run_task
from gradcent_lab.forecasting.calibration.tasks import all_tasks


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    task = next(task for task in all_tasks() if task.name == settings["task"])

    def measure(seed: int, arm: Arm) -> tuple[float, list[dict[str, Any]]]:
        rows = run_task(task)
        return 100 * outcome(task, rows).train["all"].mean, rows

    return Measurement(measure, "change of the training loss with GC, %", higher_is_better=False)
