"""The short forms of the campaigns of tools/campaigns: nothing lost, wrong, silent or crashed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from campaigns import common
from campaigns.__main__ import NAMES, load
from campaigns.common import Session
from campaigns.mutants import instrumented, mutants

from gradcent_lab import recipes

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_recipes(monkeypatch):
    """Campaigns register a recipe of their own, which the tests after them must not see."""
    monkeypatch.setattr(recipes, "RECIPES", dict(recipes.RECIPES))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("launches", "mutation")])
def test_short_form(name, tmp_path):
    campaign = load(name)
    session = Session(campaign.short, 1, tmp_path)
    campaign.run(session)
    assert session.figures.clean, session.figures.failures
    assert session.figures.tried >= campaign.short


@pytest.mark.slow
@pytest.mark.distributed
def test_short_form_of_launches():
    """In a process of its own: ranks forked from a process that ran other tests inherit their state and hang."""
    paths = os.pathsep.join([str(ROOT / "tools"), str(ROOT / "src")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "campaigns", "launches", "--short"]
    answer = subprocess.run(
        command, cwd=ROOT / "tools", env=environment, capture_output=True, text=True, timeout=300
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "launches: tried 2, lost 0, wrong 0, silent 0, crashed 0" in answer.stdout


JUDGE = """
from dataclasses import replace
from campaigns.common import ROOT
from campaigns.mutants import mutants
from campaigns.mutation_tests import Suite
file = "src/gradcent_lab/store/run_lock.py"
text = (ROOT / file).read_text()
mutant = next(m for m in mutants(text) if m.change.startswith("_newest(self.path.parent) != "))
suite = Suite([file], ["tests/lab/store/test_locks.py"])
print(suite.judge(file, mutant).name, suite.judge(file, replace(mutant, source=text)).name)
"""


@pytest.mark.slow
def test_a_mutant_is_killed_and_the_source_itself_is_not():
    """The short form of the mutation campaign, in a process that has not imported gradcent."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tools")}
    command = [sys.executable, "-c", JUDGE]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert answer.stdout.split() == ["FAILED", "SURVIVED"], answer.stderr


def test_a_campaign_continues_from_its_stored_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    campaign = load("fuzz")
    first = Session(20, 1, tmp_path)
    campaign.run(first)
    common.store(common.record(campaign, first.figures, 2.5, 1))
    figures, seconds = common.stored("fuzz")
    assert (figures, seconds) == (first.figures, 2.5)
    second = Session(30, 1, tmp_path, figures)
    campaign.run(second)
    assert second.figures.tried == 30
    assert second.rng().random() != Session(20, 1, tmp_path).rng().random()


def test_mutants_change_one_thing_each():
    source = """
def f(a: int, *, b=True):
    \"\"\"Return something.\"\"\"
    if a > 2 and not b:
        raise ValueError(f"{a + 1}")
    print(a)
    zip(a, b, strict=True)
    return a * 3
"""
    changes = {mutant.change for mutant in mutants(source)}
    assert changes == {
        "True → False",
        "if a > 2 and (not b): → if not (a > 2 and (not b)):",
        "a > 2 and (not b) → a > 2 or not b",
        "a > 2 → a >= 2",
        "2 → 3",
        "not b → b",
        "print(a) → pass",
        "zip(a, b, strict=True) → pass",
        "a * 3 → a / 3",
        "3 → 4",
    }
    assert all(mutant.source != source for mutant in mutants(source))


def test_a_mutants_statement_is_one_that_the_instrumented_source_marks():
    source = """
LIMIT = 3


def f(a, b=2):
    if a > LIMIT:
        return [
            a + 1,
        ]
    elif b:
        a = 5
    return a
"""
    lines = []
    space = {"mark": lines.append}
    exec(instrumented(source, "mark"), space)
    assert space["f"](4) == [5]
    assert lines == [6, 7]
    assert space["f"](1) == 5
    assert lines[2:] == [6, 10, 11, 12]
    statements = {mutant.change: mutant.statement for mutant in mutants(source)}
    assert statements["3 → 4"] == statements["2 → 3"] == 0  # executed by the import
    assert statements["a + 1 → a - 1"] == 7
    assert statements["5 → 6"] == 11
