"""The matrix page says what the committed facts say."""

from __future__ import annotations

import json

import engine_run
import pytest


def test_the_page_is_made_from_the_facts() -> None:
    if not engine_run.FACTS.exists():
        pytest.skip("make test-engines has not been run here")
    facts = [json.loads(line) for line in engine_run.FACTS.read_text().splitlines()]
    assert engine_run.page(facts) == engine_run.PAGE.read_text(), "stale: run make test-engines"


def test_every_kept_fact_is_within_rounding() -> None:
    if not engine_run.FACTS.exists():
        pytest.skip("make test-engines has not been run here")
    facts = [json.loads(line) for line in engine_run.FACTS.read_text().splitlines()]
    assert all(each["difference"] < 1e-3 for each in facts if "missing" not in each)
