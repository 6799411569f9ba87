"""`gradcent run`: the runs of a recipe at a scale, as far as they are not in the store already."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradcent_lab.commands.arguments import add_checkpoint_seconds
from gradcent_lab.errors import UserError
from gradcent_lab.names import escape_markup


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add(
        "recipe",
        help="table1 … table9, fig2 … fig7, theory, overhead, cifar100-small, unet; `gradcent list` tells more",
    )
    add("--scale", default="small", help="paper, small or smoke (default small)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="SWITCH=CHOICE",
        help="where paper and released code disagree",
    )
    add("--cell", action="append", metavar="NAME", help="only this cell of the table; may be repeated")
    add("--seeds", type=int, metavar="N", help="so many seeds instead of the scale's")
    add("--data", type=Path, metavar="FOLDER", help="where the data sets lie (default: GRADCENT_DATA)")
    add(
        "--download",
        action="store_true",
        help="fetch data sets and weights that are missing and may be fetched",
    )
    add("--out", type=Path, default=Path("runs"), metavar="FOLDER", help="where the runs go (default ./runs)")
    add("--workers", type=int, default=1, metavar="N", help="runs at a time on this machine (default 1)")
    add("--shard", metavar="I/N", help="only part I of N, for job arrays")
    add(
        "--ray", action="store_true", help="hand the runs to a Ray cluster (RAY_ADDRESS, or one started here)"
    )
    add(
        "--gpus-per-run", type=float, default=None, metavar="X", help="share of a GPU that a run takes on Ray"
    )
    add("--loader-workers", type=int, default=0, metavar="N", help="processes that read images, per run")
    add_checkpoint_seconds(parser)
    add("--precision", choices=("no", "bf16", "fp16"), help="mixed precision")
    add("--compile", action="store_true", help="torch.compile the network")
    add("--channels-last", action="store_true", help="channels-last memory format")
    add("--cpu", action="store_true", help="leave the GPUs alone")
    add(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="log to a tracker of accelerate: trackio (local), tensorboard, wandb, mlflow, …; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Run the study."""
    from gradcent_lab.experiment.import_spec import need

    for package in ("accelerate", "rich", "torchvision"):
        need(package, "'gradcent[lab]'")
    from rich.console import Console

    from gradcent_lab import recipes
    from gradcent_lab.data import data_root
    from gradcent_lab.experiment.study import tasks_of
    from gradcent_lab.run.accelerator import Options
    from gradcent_lab.run.progress import Display, SilentProgress
    from gradcent_lab.run.scheduler import run_tasks, shard
    from gradcent_lab.run.trackers import tracker_names

    first = os.environ.get("RANK", "0") == "0"
    console = Console(quiet=not first, soft_wrap=True)
    recipe = recipes.get(args.recipe)
    study = _adjust(recipe.study(args.scale, _switches(args.set)), args)
    data = _data(args, study) if args.download else data_root(args.data)
    study, absent = _present(study, data)
    tasks = shard(tasks_of(study, data), *_part(args.shard))
    names = [cell.name for cell in study.cells]
    console.print(f"\n[bold]{recipe.heading}[/bold]", highlight=False)
    console.print(f"  scale    {study.scale.name}: {study.scale.description}", highlight=False)
    for note in study.notes:
        console.print(f"  note     {note}", highlight=False)
    for line in absent:
        console.print(f"  [yellow]left out[/yellow] {escape_markup(line)}", highlight=False)
    console.print(
        f"  runs     {len(tasks)} in {escape_markup(args.out / study.name)}\n",
        highlight=False,
        soft_wrap=True,
    )
    options = Options(
        loader_workers=args.loader_workers,
        trackers=tracker_names(args.track),
        cpu=args.cpu,
        checkpoint_seconds=args.checkpoint_seconds,
    )
    display: Any = Display(console, study.arms, len(tasks), study.metric, names)
    with display:
        progress = display if first else SilentProgress()
        if args.ray:
            from gradcent_lab.run.ray_backend import run_on_ray

            run_on_ray(tasks, args.out, options=options, progress=progress, gpus=args.gpus_per_run)
        else:
            run_tasks(
                tasks, args.out, progress=progress, workers=args.workers, options=options, keep_going=True
            )
    if display.reused:
        console.print(f"  {display.reused} of {len(tasks)} runs were there already")
    console.print(
        f"  beside the paper's numbers: gradcent report {escape_markup(args.out)}\n", highlight=False
    )
    return 0


def _adjust(study: Any, args: argparse.Namespace) -> Any:
    """Apply what the command line changes: cells, seeds, numerics."""
    for name, value in (("workers", args.workers), ("seeds", args.seeds)):
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: give 1 or more")
    if args.cell:
        known = {cell.name: cell for cell in study.cells}
        for name in args.cell:
            if name not in known:
                raise UserError(f"{study.name} has no cell {name!r}; it has {', '.join(known)}")
        study = replace(study, cells=tuple(known[name] for name in args.cell))
    if args.seeds:
        study = replace(study, seeds=tuple(range(args.seeds)))
    numerics = study.numerics
    if args.precision:
        numerics = replace(numerics, precision=args.precision)
    if args.compile:
        numerics = replace(numerics, compile=True)
    if args.channels_last:
        numerics = replace(numerics, channels_last=True)
    return replace(study, numerics=numerics)


def _switches(words: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    for name, sign, _ in pairs:
        if not sign:
            raise UserError(f"--set {name}: write SWITCH=CHOICE")
    return {name: value for name, _, value in pairs}


def _part(words: str | None) -> tuple[int, int]:
    if words is None:
        return 1, 1
    try:
        part, parts = (int(word) for word in words.split("/"))
    except ValueError:
        raise UserError(f"--shard {words}: write I/N, for instance 2/8") from None
    return part, parts


def needed_set(cell: Any) -> str | None:
    """Return the data set that a cell reads."""
    found = cell.settings.get("data", {}).get("set") or cell.settings.get("set")
    return None if found is None else str(found)


def _data(args: argparse.Namespace, study: Any) -> Path | None:
    from gradcent_lab.data import data_root
    from gradcent_lab.data.download import download
    from gradcent_lab.models.options import DOWNLOAD

    os.environ[DOWNLOAD] = "1"  # for weights: the runs ask for them, maybe in processes of their own
    chosen = args.data or os.environ.get("GRADCENT_DATA")
    names = sorted({name for cell in study.cells if (name := needed_set(cell))})
    if not names:
        return data_root(args.data)
    if not chosen:
        raise UserError("--download needs to know where to: give --data or GRADCENT_DATA")
    root = Path(chosen).expanduser()
    for name in names:
        download(name, root)
    return root


def _present(study: Any, data: Path | None) -> tuple[Any, list[str]]:
    """Leave out the cells whose data is not there, as long as some are left; say which."""
    from gradcent_lab.data import SETS, place

    absent: dict[str, str] = {}
    for cell in study.cells:
        name = needed_set(cell)
        if name is None or name not in SETS or not SETS[name].folders or name == "fashionmnist":
            continue
        try:
            place(name, data)
        except UserError as error:
            absent[cell.name] = str(error)
    if len(absent) == len(study.cells):
        raise UserError(next(iter(absent.values())))
    kept = tuple(cell for cell in study.cells if cell.name not in absent)
    return replace(study, cells=kept), [f"{name}: {why}" for name, why in absent.items()]
