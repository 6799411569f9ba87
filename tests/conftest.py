"""What all tests share: fixed seeds, and the tests' own modules (`equations`, `optimizer_cases`) importable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _same_every_time():
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(20200708)


@pytest.fixture
def left_to_torch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many param groups each step in C left to torch's own."""
    from gradcent.optim import _native_step as _quick

    left: list[int] = []
    step = _quick.step

    def counting(*args: Any) -> Any:
        result = step(*args)
        left.append(len(result))
        return result

    monkeypatch.setattr(_quick, "step", counting)
    return left
