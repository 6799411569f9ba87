"""`gradcent demo`: the whole of the lab in about a minute, on data that ships with scikit-learn."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gradcent_lab.errors import UserError
from gradcent_lab.names import escape_markup

if TYPE_CHECKING:
    from rich.console import Console

    from gradcent_lab.store.records import RunRecord

STUDY = "digits"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--out", type=Path, default=Path("gradcent-demo"), help="folder for what it writes")
    parser.add_argument("--seeds", type=int, default=None, metavar="N", help="number of pairs (default 10)")
    parser.add_argument("--epochs", type=int, default=None, metavar="N", help="epochs of a run (default 20)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="runs at a time (default 2)")
    parser.add_argument("--resume", action="store_true", help="keep the finished runs of an earlier demo")


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    from gradcent_lab.experiment.import_spec import need

    for package in ("accelerate", "matplotlib", "rich", "scipy", "sklearn"):
        need(package, "'gradcent[lab]'")
    from functools import partial

    from rich.console import Console

    from gradcent_lab.analysis.findings import findings
    from gradcent_lab.experiment import digits as demo
    from gradcent_lab.experiment.run_config import OFF, ON
    from gradcent_lab.report.console import (
        print_curves,
        print_facts,
        print_findings,
        print_lines,
        print_written,
    )
    from gradcent_lab.report.section import Section
    from gradcent_lab.report.write import write_outputs
    from gradcent_lab.run.progress import Display
    from gradcent_lab.run.scheduler import run_pairs

    seeds = demo.SEEDS if args.seeds is None else args.seeds
    epochs = demo.EPOCHS if args.epochs is None else args.epochs
    for name, value in (("seeds", seeds), ("epochs", epochs), ("workers", args.workers)):
        if value < 1:
            raise UserError(f"--{name} {value}: give 1 or more")
    console = Console()
    words = describe(seeds, epochs)
    console.print("\n[bold]Does gradient centralization (GC) help a small network read digits?[/bold]\n")
    runs = 2 * seeds
    print_facts(console, {**words, "runs": f"{runs}, {args.workers} at a time"})

    began = time.monotonic()
    root = args.out / "runs"
    earlier = begin(console, root, args.resume)
    with Display(console, [OFF, ON], runs, "accuracy, %") as display:
        records = run_pairs(
            partial(demo.experiment, epochs),
            [OFF, ON],
            range(seeds),
            root,
            progress=display,
            workers=args.workers,
        )
    found = findings(records)
    print_findings(console, found)
    print_curves(console, found)
    options = "".join(
        f" --{name} {value}"
        for name, value, usual in (("seeds", seeds, demo.SEEDS), ("epochs", epochs, demo.EPOCHS))
        if value != usual
    )
    section = Section(
        records,
        found,
        title="Digits",
        description="; ".join(words[key] for key in ("data", "network", "training", "pairs")),
        repeat=(f"gradcent demo{options}",),
        notes=("The set-up was chosen once, before any result was seen.",),
        paste=demo.PASTE,
    )
    title = "Digits, with and without gradient centralization"
    written = write_outputs(section, args.out, title=title, kicker="gradcent demo")
    print_written(console, written)
    if earlier:
        console.print(f"\n  {repeated(earlier, records)}", highlight=False)
    print_lines(console, "In your own script:", demo.PASTE)
    print_lines(console, "On your own model:", "gradcent compare your_module:your_function")
    console.print(f"\n  [dim]took {time.monotonic() - began:.0f} s[/dim]\n", highlight=False)
    return 0


def describe(seeds: int, epochs: int) -> dict[str, str]:
    """Return the set-up in words, read off the experiment itself."""
    from gradcent_lab.experiment import digits as demo

    train, test = demo.data()
    weights = sum(parameter.numel() for parameter in demo.network().parameters())
    drops = [
        str(at) for at in dict.fromkeys(round(share * epochs) for share in demo.MILESTONES) if 0 < at < epochs
    ]
    decay = (
        f", ÷10 after epoch{'s' * (len(drops) > 1)} {', '.join(drops)} of {epochs}"
        if drops
        else f", {epochs} epochs"
    )
    return {
        "data": f"scikit-learn's digits, 8×8 pixels: {len(train)} images to train, {len(test)} to test",
        "network": f"4 convolutions with batch normalization, 1 linear layer, {weights:,} parameters",
        "training": f"SGD, momentum 0.9, weight decay 5e-4, batch {demo.BATCH}; lr {demo.LEARNING_RATE}{decay}",
        "pairs": f"{'1 seed' if seeds == 1 else f'{seeds} seeds, each'} without GC and with GC, from the same weights "
        "on the same batches",
    }


def begin(console: Console, root: Path, resume: bool) -> list[RunRecord]:
    """Say what an earlier demo left; clear its runs unless told to resume. Return them, to compare with."""
    from gradcent_lab.store import records as store

    folder = root / STUDY
    if not folder.is_dir():
        return []
    earlier = store.load(root, STUDY)
    begun = store.unfinished(root, STUDY)
    if resume:
        counts = f"{_runs(len(earlier))} finished and {len(begun)} begun"
        console.print(f"  {escape_markup(root)} has {counts}: going on from there\n", highlight=False)
        return []
    if earlier or begun:
        console.print(
            f"  {root} has {_runs(len(earlier) + len(begun))} of an earlier demo: redoing them, to see whether the "
            "numbers repeat\n  (--resume would keep them)\n",
            highlight=False,
        )
    for path in (*(record.path for record in earlier), *begun):
        store.discard(path)
    return earlier


def repeated(earlier: list[RunRecord], now: list[RunRecord]) -> str:
    """Compare the curves of the same runs, to the last digit."""
    before = {record.path.name: record for record in earlier}
    same = [record for record in now if record.path.name in before]
    if not same:
        return "The earlier demo had other settings, so there is nothing to compare with."
    equal = sum(_numbers(record) == _numbers(before[record.path.name]) for record in same)
    if equal == len(same):
        return f"All {equal} runs repeat the earlier demo's numbers to the last digit."
    return (
        f"{len(same) - equal} of {len(same)} runs differ from the earlier demo's: another machine or other versions "
        "of torch may round differently."
    )


def _numbers(record: RunRecord) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if "second" not in k} for line in record.curves]


def _runs(n: int) -> str:
    return "1 run" if n == 1 else f"{n} runs"
