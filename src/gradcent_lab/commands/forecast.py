"""`gradcent forecast module:function`: what GC would do to your model, from a few steps without GC."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gradcent_lab.errors import UserError
from gradcent_lab.names import escape_markup

if TYPE_CHECKING:
    from rich.console import Console

    from gradcent_lab.forecasting.result import Forecast

MOST_ROWS = 20  # layers printed in the terminal


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "The function is the same that `gradcent compare` takes; docs/forecast.md explains the figures."
    )
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", help="or FILE.py:FUNCTION; returns an Experiment"
    )
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps per seed (default 60)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="copies of the model (default 3)")
    parser.add_argument("--curvature", action="store_true", help="also λmax(H)/λmax(PHP), by power iteration")
    parser.add_argument(
        "--out", type=Path, default=Path("gradcent-forecast"), help="folder for what it writes"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write the forecast."""
    from gradcent_lab.experiment.import_spec import need

    for package in ("accelerate", "matplotlib", "rich"):
        need(package, "'gradcent[lab]'")
    from rich.console import Console
    from rich.progress import Progress

    from gradcent_lab.experiment import user
    from gradcent_lab.forecasting.measure import forecast

    for name in ("steps", "seeds"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: give 1 or more")
    experiment = user.build(args.function, user.Changes())
    console = Console()
    console.print(f"\n[bold]What would GC do to {escape_markup(args.function)}?[/bold]\n", highlight=False)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("training without GC", total=None)
        result = forecast(
            experiment,
            steps=args.steps,
            seeds=args.seeds,
            curvature=args.curvature,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print_forecast(console, result)
    for path in write_forecast(result, args.out, args.function):
        console.print(f"  {escape_markup(str(path))}", highlight=False, soft_wrap=True)
    console.print()
    return 0


def print_forecast(console: Console, result: Forecast) -> None:
    """Print the layers with the most gradient, the totals and the sentence."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("weight", overflow="ellipsis", no_wrap=True, max_width=34)
    for name in ("role", "share of gradient", "removed", "level of input"):
        table.add_column(name, justify="right")
    layers = sorted(result.layers, key=lambda layer: -layer.energy)
    for layer in layers[:MOST_ROWS]:
        level = "–" if layer.level is None else f"{100 * layer.level:.0f} %"
        removed = f"{100 * layer.removed:.0f} ± {100 * layer.removed_std:.0f} %"
        table.add_row(Text(layer.name), layer.role or "–", f"{100 * layer.energy:.0f} %", removed, level)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if len(layers) > MOST_ROWS:
        console.print(f"  … and {len(layers) - MOST_ROWS} more, in forecast.json")
    copies = "1 copy" if result.seeds == 1 else f"{result.seeds} copies"
    facts = [f"{result.centralized}.", f"{result.steps} steps without GC, {copies} of the model."]
    if result.curvature is not None:
        facts.append(f"λmax(H) / λmax(PHP) = {result.curvature:.2f}.")
    elif result.curvature_note:
        facts.append(f"No curvature: {result.curvature_note}.")
    console.print(Padding(Text(" ".join(facts)), (1, 0, 0, 2)))
    console.print(Padding(Text(result.sentence(), style="bold"), (1, 0, 1, 2)))


def write_forecast(result: Forecast, out: Path, function: str) -> list[Path]:
    """Write forecast.json, the bar chart and the page; return their paths."""
    from gradcent_lab.report.figures import save
    from gradcent_lab.report.figures.forecast import LayerBar, layer_shares
    from gradcent_lab.report.html import write_report
    from gradcent_lab.report.section import Picture, Section
    from gradcent_lab.report.tables import Table
    from gradcent_lab.store.atomic_files import make_folder, write_json

    make_folder(out)
    layers = sorted(result.layers, key=lambda layer: -layer.energy)
    bars = [
        LayerBar(layer.name, layer.removed, layer.removed_std, layer.level, layer.role == "input")
        for layer in layers
    ]
    figure = layer_shares(bars, f"{function}: {result.steps} steps without GC, {result.seeds} seeds")
    rows = tuple(
        (
            layer.name,
            layer.role or "–",
            f"{100 * layer.energy:.1f}",
            f"{100 * layer.removed:.1f} ± {100 * layer.removed_std:.1f}",
            "–" if layer.level is None else f"{100 * layer.level:.1f}",
        )
        for layer in layers
    )
    header = ("weight", "role", "share of the gradient, %", "removed by GC, %", "level of its input, %")
    table = Table("Layer by layer", header, rows)
    section = Section(
        (),
        title=result.name,
        description=result.sentence(),
        repeat=(f"gradcent forecast {function} --steps {result.steps} --seeds {result.seeds}",),
        notes=(result.centralized, *((result.curvature_note,) if result.curvature_note else ())),
        pictures=(Picture("layers", figure, "What GC removes from the gradient of each layer."),),
        tables=(table,),
    )
    path = out / "forecast.json"
    write_json(path, result.as_json())
    page = write_report(
        [section], out / "forecast.html", title=f"Forecast for {result.name}", kicker="gradcent forecast"
    )
    return [page, path, *save(figure, out / "layers")]
