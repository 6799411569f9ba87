"""Curves in the terminal: two or more lines drawn with braille dots, 2 × 4 to a character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rich.text import Text

STYLES = ("red", "blue", "green", "magenta", "yellow")
SAMPLES = ("━━", "╍╍", "┅┅", "┄┄", "┈┈")  # of lines without colours
BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille dots, rows from the top


def plot(
    lines: Mapping[str, Sequence[float]],
    width: int = 60,
    height: int = 10,
    focus: float = 0.0,
    colours: bool = True,
) -> Text:
    """Return the lines as coloured text with a y axis and the epochs below; without colours, the first is whole.

    `focus` leaves the first part of every line (a share of its length) out of the choice of the y range, so
    that a steep beginning does not flatten the rest; what falls outside is not drawn.
    """
    from rich.text import Text

    longest = max(len(values) for values in lines.values())
    seen = np.concatenate([np.asarray(v, dtype=float)[int(focus * len(v)) :] for v in lines.values()])
    seen = seen[np.isfinite(seen)]
    if not len(seen):
        return Text("nothing finite to draw")
    low, high = float(seen.min()), float(seen.max())
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    cells = np.zeros((height, width), dtype=int)
    owner = np.full((height, width), -1)
    for index, values in enumerate(lines.values()):
        for x, y in _dots(np.asarray(values, dtype=float), longest, 2 * width, 4 * height, low, high):
            if not colours and index and x // 2 % (index + 1) == 0:
                continue
            row, column = y // 4, x // 2
            cells[row, column] |= BITS[y % 4][x % 2]
            owner[row, column] = index
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}", (height - 1) // 2: f"{(low + high) / 2:.4g}"}
    margin = max(map(len, labels.values()))
    text = Text()
    for row in range(height):
        text.append(f"{labels.get(row, ''):>{margin}} ", style="dim")
        text.append("┤" if row in labels else "│", style="dim")
        for column in range(width):
            style = STYLES[owner[row, column] % len(STYLES)] if owner[row, column] >= 0 else ""
            text.append(chr(0x2800 + cells[row, column]) if cells[row, column] else " ", style=style)
        text.append("\n")
    text.append(" " * (margin + 1) + "└" + "─" * width + "\n", style="dim")
    last = f"epoch {longest}"
    text.append(" " * (margin + 2) + "1" + last.rjust(width - 1) + "\n", style="dim")
    text.append(" " * (margin + 2))
    for index, name in enumerate(lines):
        sample = "━━ " if colours else f"{SAMPLES[index % len(SAMPLES)]} "
        text.append(sample, style=STYLES[index % len(STYLES)])
        text.append(f"{name}   ")
    return text


def _dots(
    values: np.ndarray, longest: int, wide: int, high_dots: int, low: float, high: float
) -> list[tuple[int, int]]:
    """Return the dots of one line, with straight pieces between its points."""
    finite = np.isfinite(values)
    positions = np.arange(len(values))[finite] * (wide - 1) / max(longest - 1, 1)
    if not len(positions):
        return []
    columns = np.arange(int(positions[0]), int(positions[-1]) + 1)
    heights = np.interp(columns, positions, values[finite])
    rows = np.rint((high - heights) / (high - low) * (high_dots - 1)).astype(int).tolist()
    dots: list[tuple[int, int]] = []
    before = rows[0]
    for x, y in zip(columns.tolist(), rows, strict=True):
        start = before + (1 if y > before else -1 if y < before else 0)
        step = 1 if y >= start else -1
        dots += [(x, row) for row in range(start, y + step, step) if 0 <= row < high_dots]
        before = y
    return dots
