"""Many runs: the cells, arms and seeds of a study, each run once, on one process or several.

The arms of a seed are a pair: they begin with the same weights (compared by hash) and see the same batches
with the same augmentation, so their difference is due to centralization alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gradcent_lab.config import Arm, Numerics, RunConfig
from gradcent_lab.experiment import Experiment, Measurement
from gradcent_lab.store import RunRecord


class Progress(Protocol):
    """What is told while a study runs; the display implements it."""

    def run_started(self, config: RunConfig) -> None:
        """A run begins, or goes on from its checkpoint."""

    def epoch_done(self, config: RunConfig, metrics: Mapping[str, Any]) -> None:
        """An epoch ended; `metrics` is its line of metrics.jsonl."""

    def run_finished(self, record: RunRecord) -> None:
        """A run ended."""

    def run_skipped(self, record: RunRecord) -> None:
        """A run was found finished in the store."""


@dataclass(frozen=True)
class Scale:
    """How far a study is from the paper's, in words that are printed on every table and figure."""

    name: str
    words: str


@dataclass(frozen=True)
class Cell:
    """One row or column of a table: a name and the settings of its experiment."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A recipe at one scale: every cell with every arm for every seed."""

    name: str
    title: str
    scale: Scale
    cells: tuple[Cell, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    build: Callable[..., Experiment | Measurement]  # (settings, data folder) -> what is run
    numerics: Numerics = Numerics()
    notes: tuple[str, ...] = ()  # which side was taken where the paper and the released code disagree


def run_pairs(
    experiment: Experiment | Callable[[], Experiment],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    root: Path | str,
    *,
    cell: str | None = None,
    scale: str = "own",
    progress: Progress | None = None,
    workers: int = 1,
    numerics: Numerics | None = None,
) -> list[RunRecord]:
    """Run every arm for every seed of one experiment and return the records.

    With `workers` > 1 pass a function that other processes can import instead of the experiment itself.
    """
    raise NotImplementedError("the engine lands in the next commits; the signature stays")
