"""The page "Does it help?": its numbers recomputed from the files of the runs, and the rules of its sentences."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "results" / "studies"


@pytest.fixture
def evidence(monkeypatch):
    pytest.importorskip("scipy", reason="needs the lab: pip install 'gradcent[lab]'")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for name in ("programme", "sentences", "blocks"):
        importlib.import_module(f"evidence.{name}")
    return sys.modules["evidence"]


def last_values(study: str) -> dict[str, dict[int, float]]:
    """Arm → seed → last test accuracy, read from the files without the lab."""
    values: dict[str, dict[int, float]] = {}
    for path in sorted((STUDIES / study).iterdir()):
        config = json.loads((path / "config.json").read_text())
        lines = (path / "metrics.jsonl").read_text().splitlines()
        values.setdefault(config["arm"]["name"], {})[config["seed"]] = json.loads(lines[-1])["eval_metric"]
    return values


def test_the_numbers_of_the_table_are_those_of_the_files(evidence):
    from scipy import stats

    page = (ROOT / "docs" / "does-it-help.md").read_text()
    values = last_values("controls")
    names = evidence.programme.ARMS
    checked = 0
    for arm in set(values) - {"off"}:
        seeds = sorted(values["off"].keys() & values[arm].keys())
        row = re.search(rf"^\| Controls[^|]*\| {re.escape(names[arm])} \|.*$", page, re.MULTILINE)
        if not seeds:
            continue
        assert row, arm
        pairs = [values[arm][seed] - values["off"][seed] for seed in seeds]
        mean, n = sum(pairs) / len(pairs), len(pairs)
        cells = [cell.strip().replace("−", "-") for cell in row[0].split("|")[1:-1]]
        printed = [float(number) for number in re.findall(r"[-+]?\d+\.\d+", cells[3])]
        assert printed[0] == pytest.approx(mean, abs=0.006)
        if 1 < n < 10:  # Student's interval; the 5 % are shared among the arms that are compared with `off`
            arms = len(values) - 1
            half = stats.t.isf(0.025 / arms, n - 1) * stats.sem(pairs)
            assert printed[1:] == pytest.approx([mean - half, mean + half], abs=0.006)
        assert cells[6].split()[0] == str(n)
        checked += 1
    assert checked >= 5


def finding(difference, low, high, shown=True):
    numbers = SimpleNamespace(
        difference=difference, low=low, high=high, shown=shown, interval="Student t", n=8
    )
    return SimpleNamespace(comparison=numbers)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.5, 0.9, "does not explain"),
        (2.1, 3.5, "explains at least half"),
        (1.0, 3.0, "undecided"),
    ],
)
def test_a_control_explains_gc_if_its_interval_lies_above_half_of_the_effect(evidence, low, high, words):
    control, gc = finding((low + high) / 2, low, high), finding(4.0, 3.0, 5.0)
    assert words in evidence.sentences._explains(control, gc)
    unknown = finding(4.0, -1.0, 9.0, shown=False)
    assert "nothing to explain" in evidence.sentences._explains(control, unknown)


def test_what_is_missing_is_listed_with_its_command(evidence, tmp_path):
    text = evidence.blocks.missing(tmp_path)
    assert "| 0 of 36 | 0 of 72 | `gradcent run norms --scale mini --workers 2` |" in text
    assert "0 of 48" in text
    sentences = evidence.blocks.answer(tmp_path)
    assert sentences.count("no pair is finished yet") == 4
    assert "Not known yet" in sentences


def test_every_committed_run_names_its_instruction_set():
    """Bits repeat only where the arithmetic is the same, so a run says what it was."""
    for path in sorted((STUDIES / "controls").iterdir()):
        assert json.loads((path / "environment.json").read_text())["instruction_set"]
