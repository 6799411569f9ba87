"""Class rules and traces agree on published architectures, on meta tensors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import architectures


def test_the_quick_list_is_long_enough() -> None:
    assert len(set(architectures.quick())) >= 60


@pytest.mark.filterwarnings("ignore")  # other packages' warnings while they build models
@pytest.mark.parametrize(("library", "name"), architectures.quick(), ids=lambda value: str(value))
def test_rules_and_trace_agree(library: str, name: str) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    result = architectures.run_one(library, name)
    assert not result.keys() & {"not_built", "not_run"}, result
    assert result["disagreements"] == []
    assert result["weights"] > 5
    assert result["share_traced"] >= result["share_rules"]
