"""Run a training script as one arm of a pair, and read its metric from JSON lines.

A line such as {"epoch": 3, "metric": 91.2}, printed or written to a file, is one evaluation; other lines are
ignored. The pairing is the script's own: it must derive initial weights and batches from its seed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.store.record_types import CURVES


@dataclass(frozen=True)
class Script:
    """A command with {seed} and {gc}, and how its metric is read; importable by other processes."""

    command: str
    gc_on: str = "--gc"
    gc_off: str = ""
    metric: str = "metric"
    metric_file: str | None = None

    def check(self) -> None:
        """Refuse a command that cannot distinguish the runs."""
        if "{seed}" not in self.command:
            raise UserError("--command must contain {seed}, or every pair would be the same run")
        if "{gc}" not in self.command:
            raise UserError("--command must contain {gc}, or both arms would be the same run")
        if self.gc_on == self.gc_off:
            raise UserError("--gc-on and --gc-off are equal: both arms would be the same run")
        self.words(0, Arm("off"))

    def words(self, seed: int, arm: Arm) -> list[str]:
        """Return the command of one run."""
        option = self.gc_on if arm.on else self.gc_off
        text = self.command.replace("{seed}", str(seed)).replace("{gc}", option)
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"--command cannot be read: {error}") from None
        if not words:
            raise UserError("--command is empty")
        return words

    def measure(self, seed: int, arm: Arm) -> tuple[float, list[dict[str, Any]]]:
        """Run the script and return the last value of its metric and all its evaluations."""
        words = self.words(seed, arm)
        environment = {**os.environ, "GRADCENT_SEED": str(seed), "GRADCENT_GC": "1" if arm.on else "0"}
        path = None
        if self.metric_file is not None:
            path = Path(self.metric_file.replace("{seed}", str(seed)).replace("{arm}", arm.name))
            path.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False
            )
        except OSError as error:
            raise UserError(f"--command cannot start {words[0]}: {error.strerror}") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
            raise UserError(f"{shlex.join(words)} ended with status {done.returncode}: {lines[-1]}")
        text = done.stdout
        if path is not None:
            if not path.exists():
                raise UserError(f"{shlex.join(words)} wrote no file {path}")
            text = path.read_text()
        curves = read_lines(text, self.metric)
        if not curves:
            where = str(path) if path is not None else "its output"
            raise UserError(
                f"{shlex.join(words)}: no JSON line with the key {self.metric!r} in {where}: print for example "
                f'{{"epoch": 1, "{self.metric}": 91.2}}'
            )
        return float(curves[-1]["eval_metric"]), curves


def read_lines(text: str, metric: str) -> list[dict[str, Any]]:
    """Return the evaluations in a script's output; a quantity whose type the report cannot use is left out.

    >>> read_lines('starting\\n{"epoch": 1, "acc": 0.5, "train_loss": 2}\\n{"note": 1}', "acc")
    [{'epoch': 1, 'acc': 0.5, 'train_loss': 2, 'eval_metric': 0.5}]
    """
    curves: list[dict[str, Any]] = []
    for line in text.splitlines():
        if not line.strip().startswith("{"):
            continue
        try:
            document = json.loads(line)
        except ValueError:
            continue
        value = document.get(metric) if isinstance(document, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers = {k: v for k, v in document.items() if _is_usable(k, v)}
            curves.append({"epoch": len(curves) + 1, **numbers, "eval_metric": value})
    return curves


def _is_usable(key: str, value: Any) -> bool:
    kinds = int if key == "epoch" else CURVES.get(key, (int, float, str))
    return isinstance(value, kinds) and isinstance(value, int | float | str) and not isinstance(value, bool)
