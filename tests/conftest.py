"""What all tests share: fixed seeds, and the tests' own modules (`equations`, `optimizer_cases`) importable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
def left_to_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """For each step with GC, the number of param groups that the step in C did not do."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from gradcent.optim import _explicit_step

    left: list[int] = []
    try_fused_step = _explicit_step.try_fused_step

    def start(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if isinstance(optimizer, _explicit_step.ExplicitStep):
            left.append(0)

    def counting(*args: Any) -> bool:
        done = try_fused_step(*args)
        left[-1] += not done
        return done

    monkeypatch.setattr(_explicit_step, "try_fused_step", counting)
    handle = register_optimizer_step_pre_hook(start)
    yield left
    handle.remove()
