"""What all tests share: fixed seeds, and the tests' own modules (`equations`, `optimizer_cases`) importable."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _same_every_time():
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(20200708)
