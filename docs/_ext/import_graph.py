"""The picture of a package's parts and their imports, read from the source when the site is built.

A part is a module or folder directly inside the package. Parts stand above everything they import; an arrow that
follows from two others is left out.
"""

from __future__ import annotations

import ast
import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from import_layers import imports_of  # noqa: E402

WIDTH, BOX_HEIGHT, ROW = 720, 26, 62


def edges(package: str, src: Path = ROOT / "src") -> dict[str, set[str]]:
    """Return, for every part of the package, the parts that it imports."""
    parts: dict[str, set[str]] = {}
    for path in sorted((src / package).rglob("*.py")):
        part = path.relative_to(src / package).with_suffix("").parts[0]
        if part == "__init__":
            continue
        imported = parts.setdefault(part, set())
        for _, module in imports_of(path, src):
            names = module.split(".")
            if names[0] == package and len(names) > 1 and names[1] != part:
                imported.add(names[1])
    return {part: {name for name in imported if name in parts} for part, imported in parts.items()}


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return each part's level: 0 imports nothing, and every part stands above all that it imports."""
    level: dict[str, int] = {}
    remaining = dict(graph)
    while remaining:
        ready = [part for part, below in remaining.items() if below <= level.keys()]
        if not ready:
            raise ValueError(f"imports form a cycle among {', '.join(sorted(remaining))}")
        for part in ready:
            level[part] = 1 + max((level[name] for name in remaining[part]), default=-1)
        for part in ready:
            del remaining[part]
    return level


def direct(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the edges that do not follow from others."""
    reachable: dict[str, set[str]] = {}
    for part in sorted(graph, key=lambda name: levels(graph)[name]):
        reachable[part] = set().union(graph[part], *(reachable[name] for name in graph[part]))
    return {
        part: below - set().union(*(reachable[name] for name in below), set())
        for part, below in graph.items()
    }


def markdown(package: str) -> str:
    """Return the picture and the table of parts."""
    graph = edges(package)
    table = ["| part | what it is |", "|---|---|"]
    level = levels(graph)
    for part in sorted(graph, key=lambda name: (-level[name], name)):
        table.append(f"| `{part}` | {_docstring(ROOT / 'src' / package, part)} |")
    return f'<div class="import-graph">{svg(graph, package)}</div>\n\n' + "\n".join(table) + "\n"


def _docstring(folder: Path, part: str) -> str:
    """Return the first sentence of a part's docstring."""
    path = folder / f"{part}.py"
    tree = ast.parse((path if path.exists() else folder / part / "__init__.py").read_text())
    text = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
    return re.sub(r":\w+:(`[^`]*`)", r"\1", text).replace("|", "\\|")


def svg(graph: dict[str, set[str]], package: str) -> str:
    """Draw the parts in rows by level, the highest on top."""
    level = levels(graph)
    top = max(level.values())
    place: dict[str, tuple[float, float, float]] = {}  # centre x, y of the box's top, width
    for number in range(top, -1, -1):
        row = sorted(part for part in graph if level[part] == number)
        if number < top:  # near the parts that import them
            row.sort(key=lambda part: _mean([place[upper][0] for upper in place if part in graph[upper]]))
        widths = [max(52, 7.4 * len(part) + 18) for part in row]
        space = (WIDTH - sum(widths)) / (len(row) + 1)
        left = space
        for part, width in zip(row, widths, strict=True):
            place[part] = (left + width / 2, (top - number) * ROW + 4, width)
            left += width + space
    shapes = []
    for part, below in direct(graph).items():
        for name in sorted(below):
            x1, y1, _ = place[part]
            x2, y2, _ = place[name]
            start, middle = y1 + BOX_HEIGHT, (y1 + BOX_HEIGHT + y2) / 2
            curve = f"C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
            shapes.append(f'<path d="M{x1:.0f} {start:.0f} {curve}"/>')
    for part, (x, y, width) in place.items():
        shapes.append(
            f'<rect x="{x - width / 2:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="4"/>'
            f'<text x="{x:.0f}" y="{y + 17:.0f}">{html.escape(part)}</text>'
        )
    height = (top + 1) * ROW - (ROW - BOX_HEIGHT) + 8
    label = f"Parts of {package}; lines lead from a part down to the parts it imports"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(shapes)}</svg>'


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else WIDTH / 2
