"""The page "Does it help?": its numbers recomputed from the files of the runs, and the rules of its sentences."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "results" / "studies"
PAGE = ROOT / "docs" / "does-it-help.md"


@pytest.fixture
def evidence(monkeypatch):
    pytest.importorskip("scipy", reason="needs the lab: pip install 'gradcent[lab]'")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for name in ("programme", "sentences", "advice", "questions", "figures", "blocks"):
        importlib.import_module(f"evidence.{name}")
    return sys.modules["evidence"]


def curves_of(study: str, cell: str) -> dict[str, dict[int, list[dict]]]:
    """Arm → seed → lines of the run, read from the files without the lab."""
    values: dict[str, dict[int, list[dict]]] = {}
    for path in sorted((STUDIES / study).iterdir()):
        config = json.loads((path / "config.json").read_text())
        if config["cell"] == cell:
            lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
            values.setdefault(config["arm"]["name"], {})[config["seed"]] = lines
    return values


def student(pairs: list[float], arms: int = 1) -> list[float]:
    """Mean and Student's interval, at a level shared among the arms of a cell."""
    from scipy import stats

    mean = statistics.fmean(pairs)
    half = stats.t.isf(0.025 / arms, len(pairs) - 1) * stats.sem(pairs)
    return [mean, mean - half, mean + half]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+\.\d+", text.replace("−", "-"))]


def row(table_start: str, *cells: str) -> list[str]:
    """The cells of the row that begins with `cells`, in the table whose header begins with `table_start`."""
    table = PAGE.read_text().split(table_start, 1)[1].split("\n\n", 1)[0]
    for line in table.splitlines():
        found = [cell.strip() for cell in line.strip("|").split("|")]
        if all(cell in found for cell in cells):
            return found
    raise AssertionError(f"no row {cells} in the table {table_start}")


# study, cell, title on the page, planned arms with GC
CASES = (
    ("controls", "R8", "ResNet-8 with BN, lr 0.3 in all arms", 5),
    ("cifar100-tuned", "R8", "ResNet-8, half of CIFAR-100, tuned", 1),
    ("few-images", "R18", "ResNet-18, 5,000 images, tuned", 1),
    ("norms", "BN", "ResNet-8 with BN, tuned", 3),
    ("norms", "BN+WS", "ResNet-8 with BN and WS, tuned", 1),
    ("characters", "transformer", "Character transformer, AdamW, tuned", 1),
)


@pytest.mark.parametrize(("study", "cell", "title", "arms"), CASES)
def test_the_table_of_comparisons_is_that_of_the_files(evidence, study, cell, title, arms):
    runs = curves_of(study, cell)
    checked = 0
    for arm in set(runs) - {"off"}:
        seeds = sorted(runs["off"].keys() & runs[arm].keys())
        pairs = [runs[arm][s][-1]["eval_metric"] - runs["off"][s][-1]["eval_metric"] for s in seeds]
        cells = row("| experiment | steps | arm |", title, evidence.programme.ARMS[arm])
        means = [statistics.fmean(runs[a][s][-1]["eval_metric"] for s in seeds) for a in ("off", arm)]
        assert numbers(cells[3]) == pytest.approx(means, abs=0.051)
        expected = student(pairs, arms) if len(pairs) > 1 else pairs
        assert numbers(cells[4]) == pytest.approx(expected, abs=0.006)
        assert cells[6].split()[0] == str(len(seeds))
        checked += 1
    assert checked >= 1


@pytest.mark.parametrize(("study", "cell", "title", "arms"), CASES)
def test_speed_gap_and_generalization_are_those_of_the_files(evidence, study, cell, title, arms):
    runs = curves_of(study, cell)
    seeds = sorted(runs["off"].keys() & runs["all"].keys())
    pairs = [(runs["off"][s], runs["all"][s]) for s in seeds]
    cells = row("| experiment | target, test % |", title)
    target = statistics.median(a[-1]["eval_metric"] for a, _ in pairs)
    assert float(cells[1]) == pytest.approx(target, abs=0.051)
    logs = [math.log(time_to(b, target) / time_to(a, target)) for a, b in pairs]
    assert numbers(cells[3]) == pytest.approx([math.exp(x) for x in student(logs)], abs=0.006)
    gains = [b[-1]["train_metric"] - a[-1]["train_metric"] for a, b in pairs]
    assert numbers(cells[4]) == pytest.approx(student(gains), abs=0.051)
    gaps = [[r[-1]["train_metric"] - r[-1]["eval_metric"] for r in pair] for pair in pairs]
    means = [statistics.fmean(g[i] for g in gaps) for i in (0, 1)]
    assert numbers(cells[5]) == pytest.approx([*means, *student([b - a for a, b in gaps])], abs=0.051)
    matched = []
    for a, b in pairs:
        level = min(a[-1]["train_metric"], b[-1]["train_metric"])
        matched.append(test_metric_at(b, level) - test_metric_at(a, level))
    assert numbers(cells[6]) == pytest.approx(student(matched), abs=0.051)


def time_to(lines: list[dict], target: float) -> float:
    """Epochs until the test metric reaches the target; the whole length if it never does."""
    values = [line["eval_metric"] for line in lines]
    for index, value in enumerate(values):
        if value >= target:
            return 1 if index == 0 else index + (target - values[index - 1]) / (value - values[index - 1])
    return len(values)


def test_metric_at(lines: list[dict], level: float) -> float:
    import numpy as np

    train, test = ([line[key] for line in lines] for key in ("train_metric", "eval_metric"))
    end = next(i for i, value in enumerate(train) if value >= level)
    return float(np.interp(level, train[end - 1 : end + 1], test[end - 1 : end + 1]))


test_metric_at.__test__ = False


# study, cell, title on the page, the rates of the grid
GRIDS = (
    ("few-images", "R18", "ResNet-18, 5,000 images, tuned", (0.03, 0.1, 0.3)),
    ("norms", "BN", "ResNet-8 with BN, tuned", (0.1, 0.3, 1.0)),
    ("norms", "GN (8 groups)", "ResNet-8 with GN of 8 groups, tuned", (0.1, 0.3, 1.0)),
    ("characters", "transformer", "Character transformer, AdamW, tuned", (0.001, 0.003, 0.01)),
)


@pytest.mark.parametrize(("study", "cell", "title", "grid"), GRIDS)
def test_the_chosen_rates_are_those_of_the_held_out_runs(study, cell, title, grid):
    results: dict[str, dict[float, list[float]]] = {"off": {}, "all": {}}
    for path in (STUDIES / f"{study}-tuning").iterdir():
        config = json.loads((path / "config.json").read_text())
        rate = config["settings"]["optimizer"]["lr"]
        if config["cell"] == f"{cell}, lr {rate:g}":
            last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["eval_metric"]
            results[config["arm"]["name"]].setdefault(rate, []).append(last)
    line = re.search(rf"^- {re.escape(title)}: chosen .*$", PAGE.read_text(), re.MULTILINE)[0]
    for arm, words in (("off", "without GC"), ("all", "with GC")):
        means = {rate: statistics.fmean(values) for rate, values in results[arm].items()}
        best = max(grid, key=lambda rate: means[rate])
        assert f"{words} {best:g} ({means[best]:.1f} %)" in line
        further = [rate for rate in means if rate not in grid]
        if best in (grid[0], grid[-1]) and further:
            word = "better" if means[further[0]] > means[best] else "worse"
            assert f"{words} (the next rate is {word})" in line
            assert f"{words} {further[0]:g} ({means[further[0]]:.1f} %" in line


def test_the_readme_opens_with_the_tuned_comparison_of_the_most_steps():
    runs = curves_of("cifar100-tuned", "R8")
    pairs = [
        runs["all"][s][-1]["eval_metric"] - runs["off"][s][-1]["eval_metric"] for s in sorted(runs["off"])
    ]
    opening = (ROOT / "README.md").read_text().split("<!-- begin evidence-opening -->")[1]
    printed = re.search(r"test accuracy, (.*?) points", opening)[1]
    assert numbers(printed) == pytest.approx(student(pairs), abs=0.006)


def test_what_is_missing_is_listed_with_its_command(evidence, tmp_path):
    text = evidence.blocks.missing(tmp_path)
    command = "`gradcent run norms --scale mini --workers 2`"
    assert f"| 0 of 48, beyond the grid 0 of 16 | 0 of 60 | {command} |" in text
    assert "0 of 48" in text
    answer, questions = evidence.blocks.answer(tmp_path), evidence.blocks.answers(tmp_path)
    for entry in evidence.programme.PROGRAMME:
        if entry.subject:
            assert f"(`{entry.recipe}`). {entry.question} No pair is finished" in answer
        if entry.letter != "–":
            assert f"| {entry.question} | Not known yet: " in questions
            assert f"gradcent run {entry.recipe} --scale mini --workers 2`" in text


@pytest.fixture
def pairs(tmp_path, evidence, monkeypatch):
    """Return a function that gives an experiment runs with chosen last training and test accuracies, by arm."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "lab"))
    from synthetic_records import record

    def make(recipe, runs_by_arm, *, cell=None, epochs=12, diverged=(), control=None):
        experiment = next(e for e in evidence.programme.PROGRAMME if e.recipe == recipe)
        result = evidence.programme.Results(experiment, tmp_path)
        found = list(result.__dict__.get("records", []))
        for arm, runs in runs_by_arm.items():
            for seed, (train, test) in enumerate(runs):
                name = cell or result.study.cells[0].name
                made = record(recipe, name, arm, seed, test, epochs=epochs, metric="accuracy, %")
                lines = [{**line, "steps": 10} for line in made.curves]
                for line in lines:
                    line["train_metric"] += train - lines[-1]["train_metric"] if line is not lines[-1] else 0
                lines[-1]["train_metric"] = train
                if control and arm in control:
                    lines[-1]["eval_metric_bn_control"] = control[arm][seed]
                if arm in evidence.programme.CONTROLS:
                    made.config["arm"] = {"name": arm, "attach": None, "control": arm}
                why = "loss is nan" if (arm, seed) in diverged else None
                found.append(dataclasses.replace(made, curves=lines, diverged=why))
        result.__dict__["records"] = found
        return result

    return make


GAINS = (2.0, 2.1, 1.9, 2.0, 2.2, 1.8)
BASE = [(50.0, 40.0)] * 6


def with_gains(gains, train=0.0):
    return [(50.0 + train, 40.0 + gain) for gain in gains]


def sections_with(evidence, result, start):
    return [
        (heading, sentence)
        for heading, sentences in evidence.advice.advice([result], [])
        for sentence in sentences
        if sentence.startswith(start)
    ]


@pytest.mark.parametrize(
    ("gains", "heading", "word"),
    [
        (GAINS, "Switch it on", "yes."),
        ([-gain for gain in GAINS], "Leave it off", "no."),
        (
            (0.1, -0.1, 0.05, 0.0, -0.05, 0.02),
            "It makes no difference of a point or more",
            "no difference that",
        ),
        (
            (0.20, 0.21, 0.19, 0.2, 0.22, 0.18),
            "It makes no difference of a point or more",
            "no difference that",
        ),
        ((3.0, -3.0, 2.0, -2.5, 1.0, 0.5), "Not known", "not decided."),
    ],
)
def test_the_verdict_decides_under_which_heading_a_comparison_stands(evidence, pairs, gains, heading, word):
    result = pairs("few-images", {"off": BASE, "all": with_gains(gains)})
    ((found, sentence),) = sections_with(evidence, result, "**ResNet-18, 5,000 images")
    assert found == heading
    assert evidence.advice.summary([result], [])[0].startswith(f"**{evidence.programme.SHORT_TRAINING}: ")
    assert word in evidence.advice.summary([result], [])[0]
    assert ("by less than 1 point" in sentence) == (gains[0] == 0.20)


def test_gc_at_the_update_is_a_comparison_of_its_own_with_a_contrast(evidence, pairs):
    runs = {
        "off": BASE,
        "all": with_gains(GAINS),
        "update": with_gains([g + d for g, d in zip(GAINS, (1.1, 1.0, 0.9, 1, 1.05, 0.95), strict=True)]),
    }
    result = pairs("optimizers-tuned", runs, cell="AdamW")
    found = sections_with(evidence, result, "**ResNet-8, AdamW")
    assert [heading for heading, _ in found] == ["Switch it on", "Switch it on"]
    assert "GC at the update" in found[1][1]
    ((_, unknown),) = sections_with(evidence, result, "**ResNet-8, other optimizers")
    assert "with Adam, Adagrad, SGDW, Lion, Muon (`optimizers-tuned`)" in unknown
    answer = evidence.questions.answer(result)
    assert "AdamW +2.00 [" in answer
    assert "(update − gradient +1.00 [" in answer


def test_a_diverged_run_is_counted_and_named(evidence, pairs):
    result = pairs("few-images", {"off": BASE, "all": with_gains(GAINS)}, diverged={("all", 2)})
    ((_, sentence),) = sections_with(evidence, result, "**ResNet-18, 5,000 images")
    assert "Diverged: 0 of 6 runs without GC, 1 with GC." in sentence
    assert "unfinished" not in sentence
    assert evidence.sentences.pairs_text(result, result.main("R18")) == "5 of 6 (1 diverged)"
    all_gone = pairs(
        "few-images", {"off": BASE, "all": with_gains(GAINS)}, diverged={("all", s) for s in range(6)}
    )
    ((heading, sentence),) = sections_with(evidence, all_gone, "**ResNet-18, 5,000 images")
    assert heading == "Leave it off"
    assert "6 with GC" in sentence
    assert evidence.blocks._row(all_gone, all_gone.main("R18")).count("diverged") >= 2


def test_an_unfinished_comparison_is_called_that(evidence, pairs):
    result = pairs("few-images", {"off": BASE[:3], "all": with_gains(GAINS[:3])})
    ((_, sentence),) = sections_with(evidence, result, "**ResNet-18, 5,000 images")
    assert "unfinished: 3 of 6 pairs." in sentence


def test_stale_batch_norm_statistics_are_given_as_the_reason(evidence, pairs):
    control = {"off": [45.0, 45.1, 45.0, 44.9, 45.0, 45.1], "on": [45.2, 45.2, 45.1, 45.2, 45.1, 45.3]}
    result = pairs("unet", {"off": BASE, "on": with_gains([6.4, 6.6, 6.5, 6.3, 6.7, 6.5])}, control=control)
    verdict = evidence.sentences.verdict_text(result.main("U-Net"))
    assert verdict.startswith("inconclusive (with BatchNorm re-estimated: +0.17 [")
    assert "With BatchNorm re-estimated: +0.17 [" in evidence.questions.answer(result)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (10.0, "widens: 10.0 → 18.0 points."),
        (2.0, "does not change measurably: 10.0 → 10.0 points."),
        (0.0, "shrinks: 10.0 → 8.0 points."),
    ],
)
def test_the_gap_is_described_as_it_is(evidence, pairs, train, words):
    scatter = (0.1, -0.1, 0.05, 0.0, -0.05, 0.0)
    with_ = [(50.0 + train + s, 42.0) for s in scatter]
    result = pairs("few-images", {"off": BASE, "all": with_})
    text = evidence.sentences.generalization_text(result.main("R18"))
    assert words in text
    assert "At equal training accuracy" in text


def test_a_small_gap_says_nothing_about_generalization(evidence, pairs):
    result = pairs("few-images", {"off": [(41.0, 40.0)] * 6, "all": [(43.0, 42.0 + g) for g in GAINS]})
    assert "too early in training" in evidence.sentences.generalization_text(result.main("R18"))


def test_the_level_is_shared_among_the_planned_arms(evidence, pairs):
    """Controls plans five arms: the interval is the same before and after the others run."""
    gains = [1.7, 2.3, 1.9, 2.2, 2.4, 1.5]
    alone = pairs("controls", {"off": BASE, "all": with_gains(gains)})
    both = pairs("controls", {"off": BASE, "all": with_gains(gains), "input": with_gains(GAINS)})
    expected = student(gains, 5)
    for result in (alone, both):
        found = result.main("R8").comparison
        assert [found.difference, found.low, found.high] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (0.3, "No, it gives less than half"),
        (1.5, "Not alone, it gives less than GC in all layers"),
        (2.05, "It gives at least half"),
    ],
)
def test_a_control_explains_gc_by_paired_contrasts(evidence, pairs, gain, words):
    noise = (0.1, -0.1, 0.05, -0.05, 0.1, -0.1)
    control = [gain + n for n in noise]
    result = pairs("controls", {"off": BASE, "all": with_gains(GAINS), "rescaled": with_gains(control)})
    (line,) = evidence.questions.why(result)
    assert words in line
    contrast = [c - g for c, g in zip(control, GAINS, strict=True)]
    assert numbers(line.rsplit("layers ", 1)[1]) == pytest.approx(student(contrast, 4), abs=0.006)


def test_without_an_effect_there_is_nothing_to_explain(evidence, pairs):
    flat = with_gains((0.1, -0.1, 0.05, 0.0, -0.05, 0.02))
    result = pairs("controls", {"off": BASE, "all": flat, "rescaled": flat})
    assert "no effect of GC to explain" in evidence.questions.why(result)[0]


def test_every_label_is_inside_its_figure_and_every_arm_in_the_legend(evidence):
    results = evidence.programme.load(STUDIES)
    for name, draw in evidence.figures.FIGURES.items():
        figure = draw(results)
        figure.draw_without_rendering()
        width, height = figure.bbox.width, figure.bbox.height
        texts = [figure._supxlabel]
        for axis in figure.axes:
            if axis.get_visible():
                low, high = sorted(axis.get_ylim())
                ticks = zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
                texts += [label for place, label in ticks if low <= place <= high]  # the others are not drawn
                texts += [axis.xaxis.label, axis.yaxis.label, axis._left_title]
        for text in texts:
            box = text.get_window_extent()
            if text.get_text():
                assert box.x0 >= -2, (name, text.get_text())
                assert box.x1 <= width + 2, (name, text.get_text())
                assert -2 <= box.y0 <= box.y1 <= height + 2, (name, text.get_text())
        for legend in figure.legends:
            shown = {label for axis in figure.axes for label in axis.get_legend_handles_labels()[1]}
            assert {text.get_text() for text in legend.get_texts()} == shown


def test_a_figure_of_other_runs_is_stale(evidence, tmp_path, pairs, monkeypatch):
    runs = {"off": BASE, "all": with_gains(GAINS)}
    monkeypatch.setattr(evidence.blocks, "load", lambda root: [pairs("few-images", runs)])
    evidence.blocks.draw(tmp_path, tmp_path)
    stale = {path.name for path in evidence.blocks.stale_figures(tmp_path, tmp_path)}
    assert stale == {"rates.png"}  # nothing was tuned, so it is not drawn
    other = {"off": BASE, "all": with_gains([gain + 0.01 for gain in GAINS])}
    monkeypatch.setattr(evidence.blocks, "load", lambda root: [pairs("few-images", other)])
    stale = {path.name for path in evidence.blocks.stale_figures(tmp_path, tmp_path)}
    assert stale == {"forest.png", "rates.png", "curves.png"}


def test_every_committed_run_names_its_instruction_set():
    """Bits repeat only where the arithmetic is the same, so a run says what it was; the oldest study did not yet."""
    runs = [path for path in STUDIES.glob("*/*/environment.json") if path.parts[-3] != "cifar100-small"]
    assert len(runs) > 200
    assert [path for path in runs if not json.loads(path.read_text()).get("instruction_set")] == []
