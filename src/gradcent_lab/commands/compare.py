"""`gradcent compare module:function`: does GC help your own model? Paired runs, an interval, a verdict."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcent_lab.errors import UserError
from gradcent_lab.names import escape_markup

if TYPE_CHECKING:
    from rich.console import Console

    from gradcent_lab.experiment.spec import Experiment


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "docs/compare.md explains what the function returns; examples/compare_*.py are complete."
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", help="or FILE.py:FUNCTION; returns an Experiment"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="number of pairs (default 5)")
    parser.add_argument("--epochs", type=int, metavar="N", help="instead of the experiment's own")
    parser.add_argument("--optimizer", metavar="NAME", help="of torch.optim: AdamW, or 'SGD(momentum=0.9)'")
    parser.add_argument("--lr", type=float, metavar="RATE", help="instead of the experiment's own")
    parser.add_argument("--at", choices=("gradient", "update"), default="gradient", help="where GC acts")
    parser.add_argument("--layers", choices=("all", "conv", "linear"), default="all", help="which layers")
    parser.add_argument(
        "--decay", choices=("auto", "coupled", "decoupled"), default="auto", help="kind of decay"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gradcent-compare"), help="folder for what it writes"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    parser.add_argument("--fresh", action="store_true", help="redo finished runs instead of using them again")


def run(args: argparse.Namespace) -> int:
    """Run the comparison."""
    from gradcent_lab.experiment.import_spec import need

    for package in ("accelerate", "matplotlib", "rich", "scipy"):
        need(package, "'gradcent[lab]'")
    from rich.console import Console

    from gradcent_lab.analysis.findings import findings
    from gradcent_lab.experiment import user as compare
    from gradcent_lab.experiment.run_config import OFF, Arm
    from gradcent_lab.report.console import (
        print_curves,
        print_facts,
        print_findings,
        print_lines,
        print_written,
    )
    from gradcent_lab.report.section import Section
    from gradcent_lab.report.wording import warning
    from gradcent_lab.report.write import write_outputs
    from gradcent_lab.run.dry_run import rehearse
    from gradcent_lab.run.failure import training_failed
    from gradcent_lab.run.progress import Display
    from gradcent_lab.run.scheduler import run_pairs

    for name, value in (("seeds", args.seeds), ("epochs", args.epochs), ("workers", args.workers)):
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: give 1 or more")
    if args.lr is not None and not args.lr > 0:
        raise UserError(f"--lr {args.lr:g}: give a number above 0")
    make = partial(compare.build, args.function, compare.Changes(args.epochs, args.optimizer, args.lr))
    experiment = make()
    on = Arm("on", attach_words(args))
    centralized = compare.check_attach(experiment, [on])
    rehearse(experiment, args.function)
    console = Console()
    console.print(
        f"\n[bold]Does gradient centralization (GC) help {escape_markup(args.function)}?[/bold]\n",
        highlight=False,
    )
    facts = describe(experiment, args)
    print_facts(console, {**facts, "GC on": f"{centralized}, at the {args.at}", "runs": _runs(args)})
    if note := warning(args.seeds):
        console.print(f"  [yellow]warning:[/yellow] {note}\n", highlight=False)

    root = args.out / "runs"
    with Display(console, [OFF, on], 2 * args.seeds, experiment.metric_name) as display:
        if args.fresh:
            _discard(console, root, experiment, [OFF, on], args.seeds)
        source: Any = make if args.workers > 1 else experiment
        try:
            records = run_pairs(
                source, [OFF, on], range(args.seeds), root, progress=display, workers=args.workers
            )
        except (UserError, OSError):
            raise
        except Exception as error:
            raise training_failed(args.function, error, args.out) from error
    if display.reused:
        console.print(
            f"  {display.reused} of {2 * args.seeds} runs were there already (--fresh redoes them)\n"
        )
    if all(record.diverged for record in records):
        raise UserError(f"every run diverged, with and without GC; {records[0].diverged}")
    found = findings(records)
    print_findings(console, found)
    print_curves(console, found)
    paste = paste_lines(args)
    section = Section(
        records,
        found,
        title=experiment.name,
        description="; ".join(facts.values()),
        repeat=(command_line(args),),
        notes=(f"Centralized: {centralized}, at the {args.at}.", *filter(None, [warning(args.seeds)])),
        paste=paste,
    )
    title = f"{experiment.name}, with and without gradient centralization"
    print_written(console, write_outputs(section, args.out, title=title, kicker="gradcent compare"))
    print_lines(console, "In your own script:", paste)
    console.print()
    return 0


def attach_words(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `gradcent.attach` that the options ask for; defaults are left out."""
    words = {"layers": args.layers}
    usual = {"at": "gradient", "decay": "auto"}
    return words | {
        name: getattr(args, name) for name, value in usual.items() if getattr(args, name) != value
    }


def command_line(args: argparse.Namespace) -> str:
    """Return the command that repeats this comparison; options at their defaults are left out."""
    usual = {
        "epochs": None,
        "optimizer": None,
        "lr": None,
        "at": "gradient",
        "layers": "all",
        "decay": "auto",
    }
    given = {name: getattr(args, name) for name, value in usual.items() if getattr(args, name) != value}
    words = ["gradcent", "compare", args.function, "--seeds", str(args.seeds)]
    words += [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return shlex.join(words)


def paste_lines(args: argparse.Namespace) -> str:
    """Return the lines that turn on what was compared."""
    words = {name: value for name, value in attach_words(args).items() if (name, value) != ("layers", "all")}
    options = "".join(f', {name}="{value}"' for name, value in words.items())
    return f"import gradcent\n\ngradcent.attach(optimizer, model{options})"


def describe(experiment: Experiment, args: argparse.Namespace) -> dict[str, str]:
    """Return the experiment in words."""
    import torch

    with torch.random.fork_rng(devices=[]):
        model = experiment.model()
        params = experiment.parameters(model) if experiment.parameters else model.parameters()
        optimizer = experiment.optimizer(params)
    rate = ", ".join(sorted({f"{float(group['lr']):g}" for group in optimizer.param_groups}))
    weights = sum(parameter.numel() for parameter in model.parameters())
    return {
        "network": f"{type(model).__name__}, {weights:,} parameters",
        "training": f"{type(optimizer).__name__}, lr {rate}, {experiment.epochs} epochs, batch {experiment.batch_size}",
        "pairs": f"{'1 seed' if args.seeds == 1 else f'{args.seeds} seeds, each'} without and with GC, from the same "
        "weights on the same batches",
    }


def _runs(args: argparse.Namespace) -> str:
    return f"{2 * args.seeds}, {args.workers} at a time" if args.workers > 1 else f"{2 * args.seeds}"


def _discard(console: Console, root: Path, experiment: Experiment, arms: list[Any], seeds: int) -> None:
    """Delete the runs that are about to be redone, and only those."""
    from gradcent_lab.experiment.run_config import RunConfig
    from gradcent_lab.experiment.spec import describe as settings_of
    from gradcent_lab.store import records as store

    settings = settings_of(experiment)
    for seed in range(seeds):
        for arm in arms:
            config = RunConfig(experiment.name, experiment.name, arm, seed, "own", settings)
            store.discard(store.folder(root, config))
