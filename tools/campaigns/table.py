"""The figures of results/campaigns as Markdown, for docs/reliability.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .survivors import explanation

ORDER = (
    "kills",
    "faults",
    "corruption",
    "locking",
    "launches",
    "hostile",
    "fuzz",
    "endurance",
    "mutation",
    "offline",
)


def campaigns_table(results: Path) -> str:
    """Return one row per campaign that has been run, what failed in words, and the survivors of mutation."""
    documents = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    documents.sort(key=lambda d: ORDER.index(d["name"]) if d["name"] in ORDER else len(ORDER))
    lines = [
        "| campaign | tried | target | lost | wrong | silent | crashed | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(document) for document in documents]
    machines = sorted({document["machine"] for document in documents})
    parts = ["\n".join(lines), *(f"Machine: {machine}." for machine in machines)]
    for document in documents:
        if document["tried"] < goal(document):
            parts.append(
                f"`{document['name']}` is short of its target: {document['tried']:,} of {goal(document):,}."
            )
        if document["failures"]:
            parts.append(f"`{document['name']}` failed: " + "; ".join(document["failures"]) + ".")
        if document["name"] == "mutation":
            parts.append(_mutation(document))
    return "\n\n".join(parts)


def goal(document: dict[str, Any]) -> int:
    """Return the target of a campaign; where every point is tried, the number of points."""
    return int(document["details"].get("points", document["target"]))


def _row(document: dict[str, Any]) -> str:
    counts = [document[name] for name in ("lost", "wrong", "silent", "crashed")]
    cells = [
        document["title"],
        f"{document['tried']:,}",
        f"{goal(document):,}",
        *map(str, counts),
        document["date"],
    ]
    return "| " + " | ".join(cells) + " |"


def _mutation(document: dict[str, Any]) -> str:
    """Return the share of killed mutants and the survivors, first those that show a gap."""
    details, tried = document["details"], document["tried"]
    explained = {survivor: why for survivor in details["survivors"] if (why := explanation(survivor))}
    first, later = details["killed when first tried"], details.get("survivors killed by later tests", 0)
    removed = details.get("survivors whose code was removed", 0)
    head = (
        f"Mutation: the tests killed {first} of {tried} mutants ({_percent(first, tried)}), a random sample of the "
        f"{details['mutants that exist']:,} that exist."
    )
    if later or removed:
        head += (
            f" Tests written for the survivors kill {later} more and the code of {removed} was removed: "
            f"{first + later} of {tried - removed} ({_percent(first + later, tried - removed)}). "
            "This second figure holds for the sample only."
        )
    gaps = [f"- `{survivor}`" for survivor in details["survivors"] if survivor not in explained]
    lines = [f"- `{survivor}`: {why}" for survivor, why in explained.items()]
    parts = [head]
    if gaps:
        parts.append("\n".join(["Survivors without an explanation, which a test should kill:", "", *gaps]))
    if lines:
        parts.append("\n".join(["Survivors that change nothing a user could notice:", "", *lines]))
    return "\n\n".join(parts)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"
