"""The matrix page says what the committed facts say, and shows what failed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import engine_run
import pytest


def facts() -> list[dict[str, Any]]:
    if not engine_run.FACTS.exists():
        pytest.skip("make test-engines has not been run here")
    return [json.loads(line) for line in engine_run.FACTS.read_text().splitlines()]


def test_the_page_is_made_from_the_facts() -> None:
    assert engine_run.page(facts()) == engine_run.PAGE.read_text(), "stale: run make test-engines"


def test_every_kept_fact_is_within_rounding() -> None:
    assert all(each["difference"] < 1e-3 for each in facts() if "run" not in each)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of its own: two parts, the facts of an earlier run, and tests that the test writes."""
    monkeypatch.setattr(engine_run, "FACTS", tmp_path / "results" / "engines.jsonl")
    monkeypatch.setattr(engine_run, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(engine_run, "HERE", tmp_path)
    monkeypatch.setattr(engine_run, "ENVIRONMENTS", {"base": (), "other": ("no-such-package",)})
    (tmp_path / "results").mkdir()
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    for name in ("base", "other"):
        old = {"engine": f"old {name}", "package": "torch", "version": "1", "torch": "1", "what": "x"}
        engine_run.write(name, [{"environment": name, **old, "difference": 0.0, "date": "2020-01-01"}])
    return tmp_path


GOOD = "def test_good(verified): verified('new', 'torch', 'a fact', 1e-9, 1e-6)\n"
BAD = "def test_bad(verified): verified('new', 'torch', 'too far', 1.0, 1e-6)\n"


def test_a_part_that_was_not_run_loses_nothing(elsewhere: Path) -> None:
    (elsewhere / "test_some.py").write_text(GOOD)
    assert engine_run.main(["base"]) == 0
    page = engine_run.PAGE.read_text()
    assert "old other" in page
    assert "old base" not in page
    assert "a fact" in page
    assert "| base | 1 passed, 0 skipped |" in page


def test_a_failed_part_shows_and_counts(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "test_some.py").write_text(GOOD + BAD)
    assert engine_run.main(["base"]) == 1
    page = engine_run.PAGE.read_text()
    assert "**failed**: 1 of 2 tests: test_bad" in page
    assert "a fact" in page
    assert "too far" not in page
    assert "failed: base" in capsys.readouterr().out


def test_a_part_that_verified_nothing_has_failed(elsewhere: Path) -> None:
    (elsewhere / "test_some.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    assert engine_run.main(["base"]) == 1
    assert "**failed**" in engine_run.PAGE.read_text()


def test_an_environment_that_cannot_be_made_shows(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> str:
        raise subprocess.CalledProcessError(1, "pip", stderr="no matching\ndistribution")

    monkeypatch.setattr(engine_run, "environment", fail)
    assert engine_run.main(["other"]) == 1
    page = engine_run.PAGE.read_text()
    assert "its environment could not be made: no matching distribution" in page
    assert "old base" in page
