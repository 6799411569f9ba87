"""Every engine case, in real processes, against GC written out by hand in one process."""

from __future__ import annotations

from typing import Any

import engine_harness
import pytest

CASES = {name: case for name, case in engine_harness.load().items() if case.package != "deepspeed"}


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the cases that were asked for, one launch per number of processes."""
    wanted = {
        item.callspec.params["name"]  # type: ignore[attr-defined]
        for item in request.session.items
        if item.function is test_case  # type: ignore[attr-defined]
    }
    found: dict[str, Any] = {}
    for world in sorted({CASES[name].world for name in wanted}):
        names = [name for name in CASES if name in wanted and CASES[name].world == world]
        found |= engine_harness.launch(names, world, tmp_path_factory.mktemp("engines"))
    return found


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_case(name: str, results: dict[str, Any], verified: Any) -> None:
    case, result = CASES[name], results[name]
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert "error" not in result, result["error"]
    verified(case.engine, case.package, case.verifies, result["difference"], case.limit)
