"""`gradcent demo`: three cases in about 40 seconds: learns faster, the gap closes, hurts."""

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

STUDIES = ("digits", "brightness")
CHOSEN = (
    "The tasks were chosen to show three cases. They were chosen on other seeds and another split of the images than "
    "the ones used here, but all splits share the same 1,797 images. A first version of the demo was replaced after "
    "its results were seen; the runs of this version were not chosen."
)
FINAL_MARGIN = 2.0  # points; 500 test images resolve 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--out", type=Path, default=Path("gradcent-demo"), help="folder for what it writes")
    parser.add_argument("--seeds", type=int, default=None, metavar="N", help="number of pairs (default 8)")
    parser.add_argument(
        "--epochs", type=int, default=None, metavar="N", help="epochs of the longest runs (default 40)"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="runs at a time (default 2)")
    parser.add_argument("--resume", action="store_true", help="keep the finished runs of an earlier demo")


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    from gradcent_lab.experiment.import_spec import need

    for package in ("accelerate", "matplotlib", "rich", "scipy", "sklearn"):
        need(package, "'gradcent[demo]'")
    from rich.console import Console

    from gradcent_lab.compare import digits
    from gradcent_lab.compare.three_cases import cases, forecasts, present_cases, run_cases
    from gradcent_lab.report.console import print_facts, print_lines

    seeds = digits.SEEDS if args.seeds is None else args.seeds
    epochs = digits.EPOCHS if args.epochs is None else args.epochs
    for name, value in (("seeds", seeds), ("epochs", epochs), ("workers", args.workers)):
        if value < 1:
            raise UserError(f"--{name} {value}: give 1 or more")
    console = Console()
    console.print("\n[bold]What does gradient centralization (GC) do? Three cases.[/bold]\n")
    facts = describe(seeds, epochs)
    print_facts(console, {**facts, "runs": f"{5 * seeds}, {args.workers} at a time", "note": CHOSEN})

    began = time.monotonic()
    measured = forecasts()
    console.print("  [bold]Forecast[/bold], from a few steps without GC, before the runs", highlight=False)
    print_facts(console, {name: result.sentence() for name, result in measured.items()})
    root = args.out / "runs"
    earlier = begin(console, root, args.resume)
    records = run_cases(console, root, seeds, epochs, args.workers)
    options = "".join(
        f" --{name} {value}"
        for name, value, default in (("seeds", seeds, digits.SEEDS), ("epochs", epochs, digits.EPOCHS))
        if value != default
    )
    notes = [*facts.values(), CHOSEN]
    shown = cases(records, epochs, FINAL_MARGIN, measured)
    present_cases(console, shown, args.out, notes, f"gradcent demo{options}")
    if earlier:
        console.print(f"\n  {repeated(earlier, records)}", highlight=False)
    print_lines(console, "To use GC in your own script:", digits.PASTE)
    print_lines(console, "To see whether it helps your model:", "gradcent compare your_module:your_function")
    console.print(f"\n  [dim]took {time.monotonic() - began:.0f} s[/dim]\n", highlight=False)
    return 0


def describe(seeds: int, epochs: int) -> dict[str, str]:
    """Return the set-up in words, read off the experiments."""
    from gradcent_lab.compare import digits

    sizes = [sum(p.numel() for p in build().parameters()) for build in (digits.network, digits.plain_network)]
    count = "1 seed" if seeds == 1 else f"{seeds} seeds, each"
    return {
        "data": f"scikit-learn's digits, 8×8 pixels; {digits.TEST} images to test",
        "digits": f"{digits.DIGITS_TRAIN} images to train, 4 convolutions with GroupNorm, {sizes[0]:,} parameters, "
        f"lr {digits.DIGITS_LR}, batch {digits.DIGITS_BATCH}, {epochs} epochs, judged at epoch "
        f"{digits.early_epoch(epochs)} and at the end",
        "brightness": f"{digits.BRIGHTNESS_TRAIN} images with random exposure, brighter than the median or not, 2 "
        f"linear layers, {sizes[1]:,} parameters, lr {digits.BRIGHTNESS_LR}, batch {digits.BRIGHTNESS_BATCH}, "
        f"{digits.brightness_epochs(epochs)} epochs",
        "training": f"SGD with momentum 0.9; {count} without GC and with GC, from the same weights on the same "
        "batches; brightness also with GC in the hidden layers only",
    }


def begin(console: Console, root: Path, resume: bool) -> list[RunRecord]:
    """Report what an earlier demo left; delete its runs unless told to resume. Return them, to compare with."""
    from gradcent_lab.store import records as store

    studies = [study for study in STUDIES if (root / study).is_dir()]
    earlier = [record for study in studies for record in store.load(root, study)]
    begun = [path for study in studies for path in store.unfinished(root, study)]
    if resume and studies:
        counts = f"{_runs(len(earlier))} finished and {len(begun)} begun"
        console.print(f"  {escape_markup(root)} has {counts}: continuing from there\n", highlight=False)
        return []
    if earlier or begun:
        console.print(
            f"  {escape_markup(root)} has {_runs(len(earlier) + len(begun))} of an earlier demo: redoing them, to see "
            "whether the numbers repeat\n  (--resume would keep them)\n",
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


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
