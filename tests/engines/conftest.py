"""Keeps what each engine test verified, for the matrix page (`python -m engine_matrix`)."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

Verified = Callable[..., None]


@pytest.fixture
def verified() -> Verified:
    """Record one verified fact: engine, package, what, the largest difference, and assert its limit."""

    def record(engine: str, package: str, what: str, difference: float, limit: float) -> None:
        assert difference <= limit, f"{engine}: {what}: difference {difference} is over {limit}"
        keep(engine, package, what, difference)

    return record


def keep(engine: str, package: str, what: str, difference: float) -> None:
    """Append to the file that GRADCENT_MATRIX names."""
    path = os.environ.get("GRADCENT_MATRIX")
    if not path:
        return
    row: dict[str, Any] = {
        "engine": engine,
        "package": package,
        "version": importlib.metadata.version(package),
        "torch": importlib.metadata.version("torch"),
        "what": what,
        "difference": difference,
        "date": datetime.now(tz=UTC).date().isoformat(),
    }
    with Path(path).open("a") as file:
        file.write(json.dumps(row) + "\n")
