"""A plan as text: a table for the terminal, one for notebooks, and the totals in two lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .entry import Entry

Row = dict[str, Any]
_HEAD = ("parameter", "module", "shape", "vectors", "length", "decided by", "")
_TRACED_HEAD = (*_HEAD[:-1], "role", "level", "")
_NUMBERS = ("vectors", "length", "level")


def rows_of(entries: Sequence[Entry]) -> list[Row]:
    """Return one plain dict per entry of a plan."""
    return [
        {
            "parameter": entry.name,
            "module": entry.module,
            "shape": entry.shape,
            "vectors": entry.layout.count if entry.layout else None,
            "length": entry.layout.length if entry.layout else None,
            "centralized": entry.centralized,
            "reason": entry.reason,
            "reason_code": entry.why.code.name,
            "source": entry.source,
            "role": entry.role,
            "level": entry.level,
        }
        for entry in entries
    ]


def totals_of(entries: Sequence[Entry]) -> Row:
    """Return the totals of a plan as plain data."""
    done = [entry for entry in entries if entry.centralized]
    layouts = [entry.layout for entry in done if entry.layout is not None]
    lengths = [layout.length for layout in layouts]
    return {
        "tensors": len(entries),
        "centralized_tensors": len(done),
        "parameters": sum(entry.numel for entry in entries),
        "centralized_parameters": sum(entry.numel for entry in done),
        "vectors": sum(layout.count for layout in layouts),
        "shortest_vector": min(lengths, default=0),
        "longest_vector": max(lengths, default=0),
    }


def summary(entries: Sequence[Entry]) -> str:
    """Return the totals: what is centralized, and how many are left alone for which reason."""
    totals = totals_of(entries)
    share = totals["centralized_parameters"] / max(totals["parameters"], 1)
    shortest, longest = totals["shortest_vector"], totals["longest_vector"]
    length = f"{shortest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
    lines = [
        f"centralized: {totals['centralized_tensors']:,} of {totals['tensors']:,} tensors, "
        f"{totals['centralized_parameters']:,} of {totals['parameters']:,} parameters ({share:.1%})".replace(
            "%", " %"
        )
    ]
    if totals["vectors"]:
        lines[0] += f": {totals['vectors']:,} weight vectors of length {length}"
    left = Counter(entry.why.label for entry in entries if not entry.centralized)
    if left:
        number = sum(left.values())
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left.most_common())
        lines.append(f"left alone: {number:,} tensor{'s' if number > 1 else ''} ({reasons})")
    return "\n".join(lines)


def status_line(entries: Sequence[Entry], at: str = "gradient") -> str:
    """Return the one line that is shown where GC is turned on."""
    totals = totals_of(entries)
    share = totals["centralized_parameters"] / max(totals["parameters"], 1)
    where = "" if at == "gradient" else f", at the {at}"
    return (
        f"gradcent: {totals['centralized_tensors']:,} of {totals['tensors']:,} tensors centralized, "
        f"{100 * share:.0f} % of weights{where}"
    )


def text(entries: Sequence[Entry]) -> str:
    """Return the table for a terminal."""
    head = _head(entries)
    cells = [head, *(_cells(entry, head) for entry in entries)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if name in _NUMBERS else cell.ljust(width)
            for name, cell, width in zip(head, line, widths, strict=True)
        ).rstrip()
        for line in cells
    ]
    lines.insert(1, "─" * min(max(map(len, lines)), 110))
    return "\n".join([*lines, "", summary(entries)])


def html(entries: Sequence[Entry]) -> str:
    """Return the table for a notebook."""
    from html import escape

    names = _head(entries)
    head = "".join(f"<th style='text-align:left'>{escape(cell)}</th>" for cell in names)
    body = "".join(
        f"<tr style='opacity:{1 if entry.centralized else 0.55}'>"
        + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in _cells(entry, names))
        + "</tr>"
        for entry in entries
    )
    totals = escape(summary(entries)).replace("\n", "<br>")
    return f"<p>{totals}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _head(entries: Sequence[Entry]) -> tuple[str, ...]:
    return _TRACED_HEAD if any(entry.role for entry in entries) else _HEAD


def _cells(entry: Entry, head: Sequence[str]) -> tuple[str, ...]:
    layout = entry.layout
    status = "centralized" if entry.centralized else "left alone"
    if entry.reason:
        status += f" ({entry.reason})" if entry.centralized else f": {entry.reason}"
    cells = {
        "parameter": entry.name,
        "module": entry.module,
        "shape": "×".join(map(str, entry.shape)) or "scalar",
        "vectors": f"{layout.count:,}" if layout else "",
        "length": f"{layout.length:,}" if layout else "",
        "decided by": entry.source or "",
        "role": entry.role or "",
        "level": "" if entry.level is None else f"{entry.level:.1%}".replace("%", " %"),
        "": status,
    }
    return tuple(cells[name] for name in head)
