"""Why some mutants survive: they change nothing that a user could notice."""

from __future__ import annotations

# (file name, change) -> why
EXPLAINED: dict[tuple[str, str], str] = {
    (  # of a recorded campaign; the branch is gone since
        "operator.py",
        "vectors.dtype in _HALF → vectors.dtype not in _HALF",
    ): "both branches compute the difference in float32 and round it once",
    (
        "operator.py",
        "tensor.device.type == 'cpu' → tensor.device.type != 'cpu'",
    ): "both ways of computing a mean give the same number; this one decides whether a GPU synchronizes",
    ("layout.py", "True → False"): "dataclass(slots=True) saves memory; without frozen=True the tests fail",
    (
        "rules.py",
        "True → False",
    ): "ClassRule is private, and nothing assigns to it: frozen and slots show nowhere",
}


def explanation(survivor: str) -> str:
    """Return why a survivor ("file:line: change") need not be killed; empty if it shows a gap of the tests."""
    file, _, rest = survivor.partition(":")
    return EXPLAINED.get((file, rest.partition(": ")[2]), "")
