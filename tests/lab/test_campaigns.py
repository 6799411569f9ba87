"""The short forms of the campaigns of tools/campaigns: nothing lost, wrong, silent or crashed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from campaigns import mutation
from campaigns.__main__ import NAMES, load
from campaigns.mutants import mutants

ROOT = Path(__file__).parents[2]
SHORT = [name for name in NAMES if load(name).short]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_short_form(name, tmp_path):
    campaign = load(name)
    figures = campaign.run(campaign.short, 1, tmp_path)
    assert figures.clean, figures.failures
    assert figures.tried >= campaign.short


def test_mutants_change_one_thing_each():
    source = """
def f(a: int, *, b=True):
    \"\"\"Return something.\"\"\"
    if a > 2 and not b:
        raise ValueError(f"{a + 1}")
    print(a)
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
        "a * 3 → a / 3",
        "3 → 4",
    }
    assert all(mutant.source != source for mutant in mutants(source))


@pytest.mark.slow
def test_a_mutant_is_killed_and_the_source_itself_is_not(tmp_path):
    file = "src/gradcent_lab/store/run_lock.py"
    mutant = next(
        m for m in mutants((ROOT / file).read_text()) if m.change.startswith("_newest(self.path.parent) != ")
    )
    tree = mutation._copy_tree(tmp_path)
    assert not mutation._fails(tree, ["tests/lab/store/test_locks.py"])
    (tree / file).write_text(mutant.source)
    assert mutation._fails(tree, ["tests/lab/store/test_locks.py"])
