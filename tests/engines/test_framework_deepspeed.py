"""DeepSpeed, in processes of its own and where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import engine_harness
import pytest
from engine_examples import TORCHRUN, drift_in_example

CASES = engine_harness.load()
NAMES = [name for name, case in CASES.items() if case.package == "deepspeed"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip(
            "deepspeed is not installed here; make test-engines runs this in an environment of its own"
        )
    return engine_harness.launch(NAMES, 2, tmp_path_factory.mktemp("deepspeed"))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_case(name: str, results: dict[str, Any], verified: Any) -> None:
    case, result = CASES[name], results[name]
    assert "error" not in result, result["error"]
    assert result["moved"] > 0.01
    verified(case.engine, case.package, case.verifies, result["difference"], case.limit)


@pytest.mark.distributed
@pytest.mark.slow
def test_example(verified: Any) -> None:
    pytest.importorskip("deepspeed")
    what = "examples/integrations/with_deepspeed.py: weight sums stay, float32"
    verified("DeepSpeed", "deepspeed", what, drift_in_example("with_deepspeed", *TORCHRUN), 1e-6)
