"""The figures of results/campaigns as Markdown, for docs/reliability.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    killed, tried = document["details"]["killed"], document["tried"]
    exist = document["details"]["mutants that exist"]
    head = (
        f"Mutation: tests kill {killed} of {tried} mutants ({100 * killed / max(tried, 1):.0f} %), a random sample of "
        f"the {exist:,} that exist. Survivors:"
    )
    survivors = [f"- `{survivor}`" for survivor in document["details"]["survivors"]]
    return "\n".join([head, "", *survivors]) if survivors else head.replace(" Survivors:", "")
