"""The list of mutations fits the source, and the page that tools/mutations.py wrote is about that list."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from mutation_list import MUTATIONS, Mutation  # noqa: E402


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_each_line_stands_once_and_its_tests_exist(mutation: Mutation) -> None:
    assert (ROOT / "src" / "gradcent" / mutation.file).read_text().count(mutation.old) == 1
    for test in mutation.tests.split():
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text()


def test_the_page_has_a_row_for_each_and_every_one_was_noticed() -> None:
    lines = (ROOT / "docs" / "mutations.md").read_text().splitlines()
    rows = {line.strip("| ").split(" | ")[0]: line for line in lines if line.startswith("| ")}
    assert {each.name for each in MUTATIONS} == rows.keys() - {"broken"}
    for line in rows.values():
        assert "no test" not in line
        if "::" in line:
            path, _, name = line.rpartition("`")[0].rpartition("`")[2].partition("::")
            assert f"def {name.partition('[')[0]}" in (ROOT / "tests" / path).read_text()
