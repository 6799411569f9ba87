"""The page "Does it help?": its numbers recomputed from the files of the runs, and the rules of its sentences."""

from __future__ import annotations

import dataclasses
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
    for name in ("programme", "sentences", "advice", "blocks"):
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
    assert words in evidence.advice.explains(control, gc)
    unknown = finding(4.0, -1.0, 9.0, shown=False)
    assert "nothing to explain" in evidence.advice.explains(control, unknown)


def test_what_is_missing_is_listed_with_its_command(evidence, tmp_path):
    text = evidence.blocks.missing(tmp_path)
    assert (
        "| 0 of 36, beyond the grid 0 of 12 | 0 of 72 | `gradcent run norms --scale mini --workers 2` |"
        in text
    )
    assert "0 of 48" in text
    sentences = evidence.blocks.answer(tmp_path)
    for entry in evidence.programme.PROGRAMME:
        assert f"(`{entry.recipe}`), {entry.question} Not known yet: no pair is finished" in sentences
    for recipe in ("table1", "optimizers-tuned", "cub-tuned", "characters", "unet"):
        assert f"gradcent run {recipe} --scale mini --workers 2`" in text


@pytest.fixture
def pairs(tmp_path, evidence, monkeypatch):
    """Return a function that gives an experiment paired runs with chosen last training and test accuracies."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "lab"))
    from synthetic_records import record

    def make(recipe, without, with_):
        experiment = next(e for e in evidence.programme.PROGRAMME if e.recipe == recipe)
        result = evidence.programme.Results(experiment, tmp_path)
        found = []
        for arm, runs in (("off", without), (main_arm(result), with_)):
            for seed, (train, test) in enumerate(runs):
                made = record(recipe, result.study.cells[0].name, arm, seed, test)
                line = {**made.curves[-1], "train_metric": train}
                found.append(dataclasses.replace(made, curves=[*made.curves[:-1], line]))
        result.__dict__["records"] = found
        return result

    return make


def main_arm(result):
    return next(a.name for a in result.study.arms if a.name in ("all", "on"))


@pytest.mark.parametrize(
    ("gains", "heading"),
    [
        ((2.0, 2.1, 1.9, 2.0, 2.2), "Where it helped"),
        ((-2.0, -2.1, -1.9, -2.0, -2.2), "Where it hurt"),
        ((0.1, -0.1, 0.05, 0.0, -0.05), "Where it made no difference"),
        ((3.0, -3.0, 2.0, -2.5, 1.0), "Not decided"),
    ],
)
def test_the_verdict_decides_under_which_heading_a_comparison_stands(evidence, pairs, gains, heading):
    result = pairs("controls", [(50.0, 40.0)] * 5, [(50.0, 40.0 + gain) for gain in gains])
    found = [
        name
        for name, sentences in evidence.advice.advice([result], [])
        if any(sentence.startswith("**Controls, ResNet-8") for sentence in sentences)
    ]
    assert len(found) == 1
    assert found[0].startswith(heading)


@pytest.mark.parametrize(
    ("train_gains", "words"),
    [
        ((2.0, 2.1, 1.9, 2.0, 2.2), "faster training, no sign of better generalization."),
        ((0.0, 0.1, -0.1, 0.0, 0.2), "the gap shrinks from 10.0 to 8.0 points."),
    ],
)
def test_the_gap_between_training_and_test_decides_between_speed_and_generalization(
    evidence, pairs, train_gains, words
):
    gains = (2.0, 2.1, 1.9, 2.0, 2.2)
    with_ = [(50.0 + more, 40.0 + gain) for more, gain in zip(train_gains, gains, strict=True)]
    result = pairs("few-images", [(50.0, 40.0)] * 5, with_)
    assert evidence.sentences.comparison_text(result, result.main("R18")).endswith(words)


def test_every_committed_run_names_its_instruction_set():
    """Bits repeat only where the arithmetic is the same, so a run says what it was."""
    for path in sorted((STUDIES / "controls").iterdir()):
        assert json.loads((path / "environment.json").read_text())["instruction_set"]
