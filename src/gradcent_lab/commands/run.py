"""`gradcent run`: run a recipe at a scale; runs that the folder already has are not repeated."""

from __future__ import annotations

import argparse
import os
from collections import Counter
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
        help="a table or figure of the paper, for example table1; `gradcent list` shows all recipes",
    )
    add("--scale", default="small", help="paper, small, mini or smoke (default small)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="SWITCH=CHOICE",
        help="choose between the paper and the released code where they disagree; can be repeated",
    )
    add("--cell", action="append", metavar="NAME", help="only this cell of the table; can be repeated")
    add("--seeds", type=int, metavar="N", help="number of seeds (default: the scale's)")
    add("--data", type=Path, metavar="FOLDER", help="data folder (default: GRADCENT_DATA)")
    add(
        "--download",
        action="store_true",
        help="download missing data sets and pretrained weights",
    )
    add(
        "--out",
        type=Path,
        default=Path("runs"),
        metavar="FOLDER",
        help="folder for the runs (default ./runs)",
    )
    add("--workers", type=int, default=1, metavar="N", help="runs at a time on this machine (default 1)")
    add("--shard", metavar="I/N", help="only part I of N, for job arrays")
    add("--ray", action="store_true", help="run on a Ray cluster (RAY_ADDRESS, or a local one)")
    add("--gpus-per-run", type=float, default=None, metavar="X", help="GPUs per run on Ray, for example 0.25")
    add(
        "--loader-workers",
        type=int,
        default=0,
        metavar="N",
        help="data loading processes per run (default 0)",
    )
    add_checkpoint_seconds(parser)
    add("--precision", choices=("no", "bf16", "fp16"), help="mixed precision")
    add("--compile", action="store_true", help="torch.compile the network")
    add("--channels-last", action="store_true", help="channels-last memory format")
    add("--cpu", action="store_true", help="do not use GPUs")
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
    from gradcent_lab.experiment.study import Study, Task, tasks_of
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
    console.print(f"\n[bold]{recipe.heading}[/bold]", highlight=False)
    console.print(f"  scale    {study.scale.name}: {study.scale.description}", highlight=False)
    for note in study.notes:
        console.print(f"  note     {note}", highlight=False)
    for line in absent:
        console.print(f"  [yellow]left out[/yellow] {escape_markup(line)}", highlight=False)
    options = Options(
        loader_workers=args.loader_workers,
        trackers=tracker_names(args.track),
        cpu=args.cpu,
        checkpoint_seconds=args.checkpoint_seconds,
    )

    def run_part(part: Study, tasks: list[Task]) -> None:
        tasks = shard(tasks, *_part(args.shard))
        console.print(f"  runs     {_places(part, tasks, args.out)}\n", highlight=False, soft_wrap=True)
        names = [cell.name for cell in part.cells]
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
            console.print(f"  {display.reused} of {len(tasks)} runs were finished already")

    if study.scale.tuning is None:
        run_part(study, tasks_of(study, data))
    else:
        from gradcent_lab.recipes.tuned import run_tuned

        run_tuned(study, args.out, data, run_part)
    console.print(f"  compare with the paper: gradcent report {escape_markup(args.out)}\n", highlight=False)
    return 0


def _places(study: Any, tasks: list[Any], out: Path) -> str:
    """Return how many runs go into which folder: cells shared with another study are stored as that study's."""
    shared: dict[str, list[str]] = {}
    for cell in study.cells:
        if cell.source is not None:
            shared.setdefault(cell.source.study, []).append(cell.name)
    counts = Counter(task.config.study for task in tasks)
    own = counts.pop(study.name, 0)
    parts = [] if counts and not own else [f"{own} in {out / study.name}"]
    for name, count in counts.items():
        parts.append(f"{count} in {out / name}, which has the same runs (cell {', '.join(shared[name])})")
    return escape_markup("; ".join(parts))


def _adjust(study: Any, args: argparse.Namespace) -> Any:
    """Apply the options that change the study: cells, seeds, numerics."""
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


def _switches(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, sign, _ in pairs:
        if not sign:
            raise UserError(f"--set {name}: write SWITCH=CHOICE")
    return {name: value for name, _, value in pairs}


def _part(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    try:
        part, parts = (int(number) for number in text.split("/"))
    except ValueError:
        raise UserError(f"--shard {text}: write I/N, for example 2/8") from None
    return part, parts


def _data(args: argparse.Namespace, study: Any) -> Path | None:
    from gradcent_lab.data import data_root
    from gradcent_lab.data.download import download
    from gradcent_lab.models.options import DOWNLOAD

    os.environ[DOWNLOAD] = "1"  # for pretrained weights, which the runs load, also in worker processes
    chosen = args.data or os.environ.get("GRADCENT_DATA")
    names = sorted({name for cell in study.cells if (name := cell.data_set)})
    if not names:
        return data_root(args.data)
    if not chosen:
        raise UserError("--download needs a data folder: set --data or GRADCENT_DATA")
    root = Path(chosen).expanduser()
    for name in names:
        download(name, root)
    return root


def _present(study: Any, data: Path | None) -> tuple[Any, list[str]]:
    """Leave out the cells whose data set is missing and return why; raise if no cell is left."""
    from gradcent_lab.data import SETS, place

    absent: dict[str, str] = {}
    for cell in study.cells:
        if cell.data_set not in SETS or not SETS[cell.data_set].required:
            continue
        try:
            place(cell.data_set, data)
        except UserError as error:
            absent[cell.name] = str(error)
    if len(absent) == len(study.cells):
        raise UserError(next(iter(absent.values())))
    kept = tuple(cell for cell in study.cells if cell.name not in absent)
    return replace(study, cells=kept), [f"{name}: {why}" for name, why in absent.items()]
