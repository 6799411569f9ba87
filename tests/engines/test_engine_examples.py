"""The examples that need no environment of their own run, and the sums of weight vectors stay as they say."""

from __future__ import annotations

from typing import Any

import pytest
from engine_examples import EXAMPLES, TORCHRUN, drift_in_example


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine", "package", "start"),
    [
        ("fsdp2", "FSDP2 fully_shard", "torch", TORCHRUN),
        ("fsdp1", "FSDP1", "torch", TORCHRUN),
        ("with_accelerate", "Accelerate", "accelerate", ()),
        ("with_trainer", "Hugging Face Trainer", "transformers", ()),
        ("with_timm", "timm", "timm", ()),
    ],
)
def test_example(name: str, engine: str, package: str, start: tuple[str, ...], verified: Any) -> None:
    what = f"examples/integrations/{name}.py: weight sums stay, float32"
    verified(engine, package, what, drift_in_example(name, *start), 1e-6)


def test_every_example_is_short_and_has_a_test() -> None:
    here = EXAMPLES.parents[1] / "tests" / "engines"
    tests = "".join(path.read_text() for path in here.glob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 80, path.name
        assert f'"{path.stem}"' in tests, f"{path.name} is run by no test"
