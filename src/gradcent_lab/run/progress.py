"""What is reported while a study runs, and the live display of it.

The display has one bar for all runs, a bar for each active run and the mean difference of the finished pairs.
If the output is not a terminal (a log, a pipe), it prints one line per finished run instead.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.experiment.run_config import Arm, RunConfig
from gradcent_lab.names import printable
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import TaskID

INDENT = (0, 0, 0, 2)


class Progress(Protocol):
    """Receives the events of a study; `Display` implements it."""

    def run_started(self, config: RunConfig) -> None:
        """A run starts, or continues from its checkpoint."""

    def epoch_done(self, config: RunConfig, metrics: Mapping[str, Any]) -> None:
        """An epoch ended; `metrics` is its line of metrics.jsonl."""

    def run_finished(self, record: RunRecord) -> None:
        """A run ended."""

    def run_skipped(self, record: RunRecord) -> None:
        """The store already held the finished run."""


class SilentProgress:
    """Ignores every event."""

    def run_started(self, config: RunConfig) -> None:
        """Do nothing."""

    def epoch_done(self, config: RunConfig, metrics: Mapping[str, Any]) -> None:
        """Do nothing."""

    def run_finished(self, record: RunRecord) -> None:
        """Do nothing."""

    def run_skipped(self, record: RunRecord) -> None:
        """Do nothing."""


def arm_name(arm: Arm | str | None, several: bool = False) -> str:
    """Return the displayed name of an arm; its own name is shown only if several arms have GC."""
    if isinstance(arm, Arm) and arm.control is not None:
        return f"control ({arm.control})"
    if isinstance(arm, Arm):
        return "without GC" if not arm.on else f"with GC ({arm.name})" if several else "with GC"
    return str(arm)


def number(value: float) -> str:
    """Return a result with four digits, or a whole number in full."""
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1000 else f"{value:.4g}"


class Display:
    """Shows the events of a study; use it as a context manager around `run_study` or `run_pairs`."""

    def __init__(
        self, console: Console, arms: Sequence[Arm], runs: int, metric: str, cells: Sequence[str] = ()
    ) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.console, self.runs, self.metric = console, runs, split_metric_name(metric)[0]
        several = sum(arm.on for arm in arms) > 1
        self.names = {arm.name: arm_name(arm, several) for arm in arms}
        self.baseline = next((arm.name for arm in arms if not arm.on), None)
        self.finished: dict[tuple[str, int], dict[str, RunRecord]] = {}
        self.reused = 0
        self.done = 0
        self.began = time.monotonic()
        width = max(map(len, self.names.values())) if self.names else 10
        self.cell_width = max(map(len, cells)) + 2 if len(cells) > 1 else 0  # named where there are several
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=26),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}", style="dim", markup=False),
            console=console,
        )
        self.overall = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=26),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", style="dim"),
            console=console,
        )
        self.all = self.overall.add_task("all runs".ljust(width + 9), total=runs, words="")
        self.width = width
        self.tasks: dict[str, TaskID] = {}
        self.live: Any = None

    def __enter__(self) -> Display:
        from rich.live import Live

        self.began = time.monotonic()
        if self.console.is_terminal:
            self.live = Live(self._draw(), console=self.console, refresh_per_second=8, transient=True)
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*error)
        else:
            self.console.print()

    def run_started(self, config: RunConfig) -> None:
        """Show a bar for the run's epochs."""
        name = (
            self._cell(config.cell)
            + f"seed {config.seed:<3} {self.names.get(config.arm.name, config.arm.name)}"
        )
        total = max(config.epochs, 1)
        self.tasks[config.run_id] = self.bars.add_task(
            printable(name).ljust(self.width + 9), total=total, words=""
        )
        self._refresh()

    def epoch_done(self, config: RunConfig, metrics: Mapping[str, Any]) -> None:
        """Move the run's bar."""
        task = self.tasks.get(config.run_id)
        if task is None:
            self.run_started(config)
            task = self.tasks[config.run_id]
        words = f"loss {metrics['train_loss']:.3g}   {self.metric} {metrics['eval_metric']:.4g}"
        self.bars.update(task, completed=int(metrics["epoch"]), words=words)
        self._refresh()

    def run_finished(self, record: RunRecord) -> None:
        """Remove the run's bar and count it."""
        self._count(record, "")

    def run_skipped(self, record: RunRecord) -> None:
        """Count a run that was finished already."""
        self.reused += 1
        self._count(record, " (finished already)")

    def _count(self, record: RunRecord, words: str) -> None:
        task = self.tasks.pop(record.path.name, None)
        if task is not None:
            self.bars.remove_task(task)
        self.done += 1
        fresh = self.done - self.reused
        left = (time.monotonic() - self.began) / fresh * (self.runs - self.done) if fresh else 0.0
        self.overall.update(self.all, completed=self.done, words=f"about {left:.0f} s left" if left else "")
        self.finished.setdefault((record.cell, record.seed), {})[record.arm] = record
        if self.live is None:
            name = f"seed {record.seed:<3} {self.names.get(record.arm, record.arm):<{self.width}}"
            name = self._cell(record.cell) + name
            metric = split_metric_name(record.metric_name)[0]
            value = "diverged" if record.diverged else f"{metric} {number(record.last)}"
            line = printable(f"  {self.done:>3}/{self.runs}  {name}  {value}{words}")
            self.console.print(line, highlight=False, markup=False)
        self._refresh()

    def _cell(self, name: str) -> str:
        return name.ljust(self.cell_width) if self.cell_width else ""

    def _refresh(self) -> None:
        if self.live is not None:
            self.live.update(self._draw())

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding

        parts: list[RenderableType] = [self.overall, self.bars]
        if line := self._pairs():
            parts.append(line)
        return Padding(Group(*parts), INDENT)

    def _pairs(self) -> str:
        """Return the mean difference of the finished pairs."""
        gains = []
        for runs in self.finished.values():
            base = runs.get(self.baseline or "")
            for name, run in runs.items():
                if base is not None and name != self.baseline and not (run.diverged or base.diverged):
                    gains.append(run.last - base.last)
        if not gains:
            return ""
        mean = sum(gains) / len(gains)
        pairs = "1 pair" if len(gains) == 1 else f"{len(gains)} pairs"
        return f"[dim]so far: {pairs}, mean difference {mean:+.3g} {self.metric}[/dim]"
