"""One `gradcent compare --command`: paired runs of an existing script."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from gradcent_lab.analysis.findings import Finding, Rules, findings
from gradcent_lab.compare.options import command_line
from gradcent_lab.compare.outcome import Outcome, present
from gradcent_lab.compare.script import Script
from gradcent_lab.compare.until_decided import run_until_decided
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, Arm, RunConfig
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.experiment.study import Task
from gradcent_lab.names import escape_markup
from gradcent_lab.report.console import print_facts
from gradcent_lab.report.wording import warning
from gradcent_lab.run.progress import Display
from gradcent_lab.run.scheduler import run_tasks
from gradcent_lab.store import records as store
from gradcent_lab.store.records import RunRecord

ARMS = (OFF, Arm("on", {}))
NAME = "command"
PAIRING = (
    "The pairing is the script's own: nothing here checks that both runs of a pair start from the same weights and see "
    "the same batches."
)


def measurement(script: Script, higher_is_better: bool) -> Measurement:
    """Return the script as a measurement; importable by other processes."""
    return Measurement(script.measure, script.metric, higher_is_better)


def compare_script(args: argparse.Namespace) -> int:
    """Run the script for both arms of every seed and write the report."""
    from rich.console import Console

    script = Script(args.script, args.gc_on, args.gc_off, args.metric, args.metric_file)
    script.check()
    settings: dict[str, object] = {
        "command": args.script,
        "gc_on": args.gc_on,
        "gc_off": args.gc_off,
        "metric": args.metric,
    }
    make = partial(measurement, script, not args.lower_is_better)
    rules = Rules(args.margin, args.target, sequential=args.until_decided)
    most = args.max_seeds if args.until_decided else args.seeds
    root = args.out / "runs"
    console = Console()
    console.print(
        f"\n[bold]Does gradient centralization (GC) help {escape_markup(repr(args.script))}?[/bold]\n",
        highlight=False,
    )
    facts = {"command": args.script, "{gc}": f"{args.gc_on!r} with GC, {args.gc_off!r} without"}
    print_facts(console, {**facts, "pairing": PAIRING})
    notes = [PAIRING]
    if not args.until_decided and (few := warning(args.seeds)):
        notes.append(few)
        console.print(f"  [yellow]warning:[/yellow] {few}\n", highlight=False)
    with Display(console, ARMS, 2 * most, args.metric) as display:

        def run_seeds(seeds: range) -> list[RunRecord]:
            tasks = [
                Task(RunConfig(NAME, NAME, arm, seed, "own", settings), make)
                for seed in seeds
                for arm in ARMS
            ]
            if args.fresh:
                for task in tasks:
                    store.discard(store.folder(root, task.config))
            return run_tasks(tasks, root, progress=display, workers=args.workers)

        def judge(records: Sequence[RunRecord]) -> list[Finding]:
            return findings(records, rules=rules)

        try:
            if args.until_decided:
                step = max(1, args.workers // 2)
                records = run_until_decided(run_seeds, judge, most=most, step=step)
            else:
                records = run_seeds(range(most))
        except KeyboardInterrupt:
            raise UserError(
                f"interrupted: {display.done} of {display.runs} runs are finished and kept in {root}; repeat the "
                "command to continue"
            ) from None
    outcome = Outcome(
        name=NAME,
        records=records,
        found=findings(records, rules=rules),
        facts=facts,
        notes=notes,
        command=command_line(args),
        margin=args.margin,
    )
    present(console, outcome, args.out)
    return 0
