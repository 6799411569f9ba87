"""The common style of all figures, and saving them: as files (SVG, PNG) or as SVG inside a page.

Colours follow the paper: red without GC, blue with. Inside a page every colour becomes a CSS variable, so
that a figure follows the reader's light or dark mode; in files the light values below are used.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gradcent_lab.store.atomic_files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

INK, MUTED, GRID, PAPER = "#1c2128", "#59636e", "#d8dee4", "#fefefe"
WITHOUT, WITH = "#c62f38", "#1f6bc4"
MORE = ("#0f7b6c", "#8250b4", "#9a6700")  # further arms

# names of the CSS variables that replace the colours inside a page
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", PAPER: "--paper", WITHOUT: "--off", WITH: "--on"}
VARIABLES |= {colour: f"--arm{number}" for number, colour in enumerate(MORE, start=1)}

RC: Any = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "savefig.facecolor": PAPER,
    "savefig.dpi": 160,
    "svg.fonttype": "none",  # real text: searchable, readable aloud, small
    "axes.unicode_minus": True,
    "text.parse_math": False,  # a dollar sign in a user's name is a dollar sign
}


def shorten(text: str, most: int = 40) -> str:
    """Return a name for a tick, a title or a legend, cut if it would leave no room for the figure itself."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def arm_colour(index: int) -> str:
    """Return the colour of the arm at `index`; 0 is the arm without GC."""
    return (WITHOUT, WITH, *MORE)[index % (2 + len(MORE))]


def styled(draw: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a drawing function with the settings above, whatever the user's matplotlib settings are."""

    @wraps(draw)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        from matplotlib import rc_context, rcParamsDefault

        plain = {key: value for key, value in rcParamsDefault.items() if not key.startswith("backend")}
        with rc_context({**plain, **RC}):
            return draw(*args, **kwargs)

    return wrapped


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure outside pyplot's global state, and its axes in reading order."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def caption(figure: Figure, text: str) -> None:
    """Write the scale, n and other facts into the figure, so that the file carries them."""
    if text:
        wide = int(figure.get_figwidth() * 17)  # characters of this font size per line
        figure.supxlabel(textwrap.fill(shorten(text, 700), wide), fontsize=8, color=MUTED, x=0.01, ha="left")


def save(figure: Figure, stem: Path, facts: Mapping[str, str] | None = None) -> list[Path]:
    """Write `stem`.svg and `stem`.png and return their paths; equal figures give equal files.

    `facts` are written into the PNG's text fields.
    """
    from matplotlib import rc_context

    make_folder(stem.parent)
    paths = [stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")]
    with rc_context({**RC, "svg.hashsalt": stem.name}):
        svg, png = {"Date": None, "Creator": "gradcent"}, {"Software": "gradcent", **(facts or {})}
        write_atomically(paths[0], lambda stream: figure.savefig(stream, format="svg", metadata=svg))
        write_atomically(paths[1], lambda stream: figure.savefig(stream, format="png", metadata=png))
    return paths


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return the figure as one `<svg>` element for a page; `name` keeps its ids apart from other figures'."""
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({**RC, "svg.hashsalt": name, "savefig.transparent": True}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\1{name}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    label = html.escape(description, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()
