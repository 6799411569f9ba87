"""`gradcent list`: the recipes, what each would cost at each scale, and what has run."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("recipe", nargs="?", help="tell everything about this one")
    parser.add_argument(
        "--root", type=Path, default=Path("runs"), metavar="FOLDER", help="folder of runs (default ./runs)"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="data folder (default: GRADCENT_DATA)")


def run(args: argparse.Namespace) -> int:
    """Print the list, or one recipe."""
    from gradcent_lab.experiment.import_spec import need

    for package in ("rich", "torchvision"):
        need(package, "'gradcent[lab]'")
    return _one(args) if args.recipe else _all(args)


def _all(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from gradcent_lab import recipes
    from gradcent_lab.analysis.cost import count

    done = finished(args.root)
    table = Table(box=None, pad_edge=False)
    for title in ("recipe", "in the paper", "what", "runs at paper / small / smoke scale", "done"):
        table.add_column(title, overflow="fold")
    for name in recipes.RECIPES:
        recipe = recipes.get(name)
        counts = [
            str(count(recipe.study(scale.name))["runs"]) if scale else "–" for scale in _three(recipe.scales)
        ]
        study = recipe.study(recipe.scales[-1].name).name
        have = ", ".join(f"{count} {scale}" for (s, scale), count in sorted(done.items()) if s == study)
        table.add_row(name, recipe.paper.replace("none", "–"), recipe.title, " / ".join(counts), have or "–")
    for name, words in recipes.WAITING.items():
        table.add_row(name, "–", words, "not yet", "–")
    console = Console()
    console.print(table)
    console.print("\n`gradcent list RECIPE` tells everything about one; `gradcent run RECIPE` runs it.")
    return 0


def _one(args: argparse.Namespace) -> int:
    from rich.console import Console

    from gradcent_lab import recipes
    from gradcent_lab.analysis import cost
    from gradcent_lab.data import SETS, data_root, find

    recipe, console = recipes.get(args.recipe), Console(soft_wrap=True, highlight=False)
    console.print(f"[bold]{recipe.name}[/bold]  {recipe.heading}")
    speed = cost.throughput(args.root)
    for scale in recipe.scales:
        study = recipe.study(scale.name)
        words = cost.words(study, speed.get((study.name, scale.name)))
        console.print(f"  scale {scale.name:<6} {scale.words}\n               {words}")
    for name, switch in recipe.switches.items():
        console.print(f"  switch {name}={'|'.join(switch.choices)}: {switch.words}")
    for note in recipe.notes:
        console.print(f"  note {note}")
    root = data_root(args.data)
    for name in recipe.needs:
        where = find(name, root)
        console.print(f"  data {SETS[name].title}: {where if where else 'not found; ' + SETS[name].where}")
    return 0


def _three(scales: Any) -> list[Any]:
    by_name = {scale.name: scale for scale in scales}
    return [by_name.get(name) for name in ("paper", "small", "smoke")]


def finished(root: Path) -> Counter[tuple[str, str]]:
    """Count the finished runs of a store by study and scale."""
    from gradcent_lab.store import records as store

    if not root.is_dir():
        return Counter()
    return Counter((record.study, record.scale) for record in store.load(root))
