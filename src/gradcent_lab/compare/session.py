"""One `gradcent compare` of an Experiment, from the checks to the report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gradcent_lab.analysis.findings import Finding, Rules, findings
from gradcent_lab.analysis.tuning import TunedArm, Values, parse_grid
from gradcent_lab.compare.arms import PlannedArm, tasks_for
from gradcent_lab.compare.options import command_line, describe, make_arms
from gradcent_lab.compare.outcome import Outcome, present
from gradcent_lab.compare.tune import tune
from gradcent_lab.compare.until_decided import note_look, run_until_decided
from gradcent_lab.errors import UserError
from gradcent_lab.experiment import user
from gradcent_lab.experiment.run_config import digest
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.names import escape_markup
from gradcent_lab.report.console import print_facts
from gradcent_lab.report.wording import warning
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.dry_run import prepare
from gradcent_lab.run.failure import training_failed
from gradcent_lab.run.progress import Display
from gradcent_lab.run.scheduler import run_tasks
from gradcent_lab.run.trackers import tracker_names
from gradcent_lab.store import records as store
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from rich.console import Console

Result = TypeVar("Result")


def build(spec: str, changes: user.Changes, values: Values) -> Experiment:
    """Return the experiment with tuned values; importable by other processes."""
    return user.build(spec, replace(changes, tuned=values))


def compare_experiment(args: argparse.Namespace) -> int:
    """Run a comparison of a user's experiment and write its report."""
    from rich.console import Console

    trackers = tracker_names(args.track)
    changes = user.Changes(args.epochs, args.optimizer, args.lr, args.recalibrate_bn)
    make = partial(user.build, args.function, changes)
    experiment = make()
    chosen = make_arms(args)
    prepared = prepare(experiment, args.function, chosen)
    experiment, notes = prepared.experiment, list(prepared.warnings)
    arms = [PlannedArm(arm, experiment, make) for arm in chosen]
    console = Console()
    console.print(
        f"\n[bold]Does gradient centralization (GC) help {escape_markup(args.function)}?[/bold]\n",
        highlight=False,
    )
    facts = describe(prepared, args)
    most = args.max_seeds if args.until_decided else args.seeds
    centralized = "; ".join(map(str, prepared.arms.values()))
    runs = _runs(args, len(arms))
    print_facts(console, {**facts, "GC on": f"{centralized}, at the {args.at}", "runs": runs})
    if not args.until_decided and (few := warning(args.seeds)):
        notes.append(few)
    for note in notes:
        console.print(f"  [yellow]warning:[/yellow] {escape_markup(note)}\n", highlight=False)
    runner = Runner(args, console, arms, trackers)
    tuned: list[TunedArm] = []
    if args.tune:
        tuned = runner.tune(partial(build, args.function, changes))
        arms = [
            planned.tuned(
                build(args.function, changes, result.best.values),
                partial(build, args.function, changes, result.best.values),
                dict(result.best.values),
            )
            for planned, result in zip(arms, tuned, strict=True)
        ]
        runner.arms = arms
    rules = Rules(args.margin, args.target, sequential=args.until_decided)
    records = runner.compare(rules, most)
    if all(record.diverged for record in records):
        raise UserError(f"every run diverged, with and without GC; {records[0].diverged}")
    pairs = len({record.seed for record in records})
    judged = [record.config["arm"] for record in records[: len(arms)]]
    key = digest([*judged, records[0].config["settings"]])
    if note_look(args.out, key, pairs) and not rules.sequential:
        rules = replace(rules, sequential=True)
        notes.append(
            "pairs were added after a look at fewer, so the verdict uses the rule that allows it (docs/statistics.md)"
        )
        console.print(f"  [yellow]note:[/yellow] {notes[-1]}\n", highlight=False)
    outcome = Outcome(
        name=experiment.name,
        records=records,
        found=findings(records, rules=rules),
        facts=facts,
        notes=[f"Centralized: {centralized}, at the {args.at}.", *notes],
        command=command_line(args),
        attach={arm.name: arm.attach for arm in chosen if arm.attach is not None},
        weights={
            name: f"{len(plan.names)} of {plan.tensors}, {100 * plan.share:.0f} %"
            for name, plan in prepared.arms.items()
        },
        tuned=tuned,
        margin=args.margin,
        experiment=arms[0].experiment,
    )
    present(console, outcome, args.out)
    return 0


class Runner:
    """Runs the tasks of a comparison with one display, and says what is kept when it is interrupted."""

    def __init__(
        self,
        args: argparse.Namespace,
        console: Console,
        arms: Sequence[PlannedArm],
        trackers: tuple[str, ...] = (),
    ) -> None:
        self.args, self.console, self.arms = args, console, list(arms)
        self.root: Path = args.out / "runs"
        self.options = Options(trackers=trackers, checkpoint_seconds=args.checkpoint_seconds)

    def tune(self, build_values: Callable[[Values], Experiment]) -> list[TunedArm]:
        """Run the grid of every arm."""
        grid = parse_grid(self.args.tune)
        points = 1
        for values in grid.values():
            points *= len(values)
        total = points * len(self.arms) * self.args.tune_seeds
        self.console.print(
            f"  tuning {'both' if len(self.arms) == 2 else len(self.arms)} arms: {points} grid points, {total} runs "
            "on held-out training data\n"
        )
        with self._display(total) as display:
            return self._guarded(
                display,
                lambda: tune(
                    self.arms,
                    grid,
                    build_values,
                    self.root,
                    seeds=self.args.tune_seeds,
                    workers=self.args.workers,
                    progress=display,
                    options=replace(self.options, trackers=()),
                ),
            )

    def compare(self, rules: Rules, most: int) -> list[RunRecord]:
        """Run the pairs: a fixed number, or until the rule decides."""
        total = len(self.arms) * most
        with self._display(total) as display:
            if self.args.fresh:
                for task in tasks_for(self.arms, range(most)):
                    store.discard(store.folder(self.root, task.config))

            def run_seeds(seeds: range) -> list[RunRecord]:
                tasks = tasks_for(self.arms, seeds, share=self.args.workers > 1)
                return run_tasks(
                    tasks, self.root, progress=display, workers=self.args.workers, options=self.options
                )

            def judge(records: Sequence[RunRecord]) -> list[Finding]:
                return findings(records, rules=rules)

            def run_all() -> list[RunRecord]:
                if not self.args.until_decided:
                    return run_seeds(range(most))
                step = max(1, self.args.workers // len(self.arms))
                return run_until_decided(run_seeds, judge, most=most, step=step)

            records = self._guarded(display, run_all)
        if display.reused:
            self.console.print(
                f"  {display.reused} of {len(records)} runs were there already (--fresh redoes them)\n"
            )
        return records

    def _display(self, total: int) -> Display:
        arms = [planned.arm for planned in self.arms]
        return Display(self.console, arms, total, self.arms[0].experiment.metric_name)

    def _guarded(self, display: Display, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except (UserError, OSError):
            raise
        except KeyboardInterrupt:
            raise UserError(
                f"interrupted: {display.done} of {display.runs} runs are finished and kept in {self.root}; repeat the "
                "command to continue"
            ) from None
        except Exception as error:
            raise training_failed(self.args.function, error, self.args.out) from error


def _runs(args: argparse.Namespace, arms: int) -> str:
    most = f"up to {arms * args.max_seeds}, until decided" if args.until_decided else f"{arms * args.seeds}"
    return f"{most}, {args.workers} at a time" if args.workers > 1 else most
