"""Why some mutants survive: they change nothing that a user could notice."""

from __future__ import annotations

# (file name, change) -> why
EXPLAINED: dict[tuple[str, str], str] = {
    (
        "operator.py",
        "vectors.dtype in _HALF → vectors.dtype not in _HALF",
    ): "both branches compute the difference in float32 and round it once",
}


def explanation(survivor: str) -> str:
    """Return why a survivor ("file:line: change") need not be killed; empty if it shows a gap of the tests."""
    file, _, rest = survivor.partition(":")
    return EXPLAINED.get((file, rest.partition(": ")[2]), "")
