"""`gradcent list`: the recipes, the runs of each at each scale, and what has run."""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcent_lab.recipes.recipe import Recipe

SCALES = ("paper", "small", "mini", "smoke")  # the columns of the list


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("recipe", nargs="?", help="show one recipe in full: scales, costs, switches, data")
    parser.add_argument(
        "--root", type=Path, default=Path("runs"), metavar="FOLDER", help="folder of runs (default ./runs)"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="data folder (default: GRADCENT_DATA)")


def run(args: argparse.Namespace) -> int:
    """Print the list, or one recipe."""
    if args.recipe:
        _print_one(args.recipe, args.root, args.data)
    else:
        _print_all(args.root)
    return 0


def _print_all(root: Path) -> None:
    """Print one line per recipe; the titles are cut to the width of the terminal."""
    from gradcent_lab.recipes import all_recipes

    finished, cells = count_finished(root), FinishedCells(root)
    rows: list[tuple[str, ...]] = [("recipe", "title", *SCALES, "done")]
    for name, recipe in all_recipes().items():
        rows.append((name, recipe.title, *_run_counts(recipe), _done(recipe, finished, cells)))
    for line in format_rows(rows, shutil.get_terminal_size().columns):
        print(line)
    print(f"\npaper, small, mini, smoke: runs at that scale; done: finished runs in {root}")
    print("gradcent list RECIPE    its scales, costs, switches and data")
    print("gradcent run RECIPE     runs it")


def format_rows(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return one line per row; the second column is cut so that every line fits into `width`."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    widths[1] = max(10, min(widths[1], width - sum(widths) + widths[1] - 2 * (len(widths) - 1)))
    lines = []
    for row in rows:
        cells = [
            cell if len(cell) <= size else f"{cell[: size - 1]}…"
            for cell, size in zip(row, widths, strict=True)
        ]
        text = [cell.ljust(size) for cell, size in zip(cells[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(size) for cell, size in zip(cells[2:], widths[2:], strict=True)]
        lines.append("  ".join((*text, *numbers)).rstrip())
    return lines


def _run_counts(recipe: Recipe) -> list[str]:
    from gradcent_lab.analysis.cost import count_runs

    known = {scale.name for scale in recipe.scales}
    return [str(count_runs(recipe.study(name))) if name in known else "–" for name in SCALES]


def _done(recipe: Recipe, finished: Counter[str], cells: FinishedCells) -> str:
    """Count the finished runs of a recipe, those of another study that it shows too included."""
    shared = sum(cells[source.study][source.cell] for source in recipe.sources.values())
    return str(finished[recipe.study_name or recipe.name] + shared or "–")


def _print_one(name: str, root: Path, data: Path | None) -> None:
    from gradcent_lab import recipes
    from gradcent_lab.analysis import cost
    from gradcent_lab.data.datasets import SETS, data_root, find

    recipe = recipes.get(name)
    print(f"{recipe.name}  {recipe.heading}")
    speed, folder = cost.throughput(root), data_root(data)
    for scale in recipe.scales:
        study = recipe.study(scale.name)
        print(f"  scale {scale.name:<6} {scale.description}")
        print(f"               {cost.words(study, speed.get((study.name, scale.name)), folder)}")
    for switch_name, switch in recipe.switches.items():
        print(f"  switch {switch_name}={'|'.join(switch.choices)}: {switch.description}")
    for note in recipe.notes:
        print(f"  note {note}")
    for set_name in recipe.data_sets:
        info, path = SETS[set_name], find(set_name, folder)
        print(f"  data {info.title}: {path or f'not found; {info.where}'}")


def count_finished(root: Path) -> Counter[str]:
    """Count the finished runs of a folder by study."""
    from gradcent_lab.store.records import is_finished

    if not root.is_dir():
        return Counter()
    studies = [path for path in root.iterdir() if path.is_dir()]
    return Counter({path.name: sum(is_finished(run) for run in path.iterdir()) for path in studies})


class FinishedCells(dict[str, Counter[str]]):
    """Study → its finished runs by cell; a study's configurations are read when it is asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, study: str) -> Counter[str]:
        from gradcent_lab.store.atomic_files import read_json
        from gradcent_lab.store.records import is_finished

        place = self.root / study
        runs = [run for run in place.iterdir() if is_finished(run)] if place.is_dir() else []
        configs = [read_json(run / "config.json") for run in runs]
        self[study] = Counter(str(config["cell"]) for config in configs if "cell" in config)
        return self[study]
