"""`gradcent compare --arms` and `gradcent explain` of an Experiment, run as a user does."""

import csv
import json
import math
import statistics
from pathlib import Path

import pytest
from scipy import stats

from gradcent_lab.cli import main

HERE = "compare_fixtures"
WORDS = [f"{HERE}:toy", "--arms", "off,all,hidden,input", "--out", "out"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")


def last_values(study="toy"):
    """The last metric of every run by arm and seed, read without the lab."""
    values = {}
    for path in Path("out/runs", study).iterdir():
        config = json.loads((path / "config.json").read_text())
        curves = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        values.setdefault(config["arm"]["name"], {})[config["seed"]] = curves[-1]["eval_metric"]
    return {arm: [runs[seed] for seed in sorted(runs)] for arm, runs in values.items()}


def signed(value, places):
    text = f"{value:+.{places}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{places}f}") == 0 else text


def test_arms_are_paired_corrected_and_recomputed(capsys):
    assert main(["compare", *WORDS, "--seeds", "5"]) == 0
    text = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
    values = last_values()
    assert {arm: len(runs) for arm, runs in values.items()} == dict.fromkeys(
        ("off", "all", "hidden", "input"), 5
    )
    rows = {row["arm"]: row for row in csv.DictReader(Path("out/table.csv").read_text().splitlines())}
    # two digits of the smaller deviation of a pair of arms; the coarsest of these for all
    spreads = [
        min(statistics.stdev(values["off"]), statistics.stdev(values[arm]))
        for arm in ("all", "hidden", "input")
    ]
    places = min(min(5, max(1, 1 - math.floor(math.log10(spread)))) for spread in spreads)
    for arm in ("all", "hidden", "input"):
        test = stats.ttest_rel(values[arm], values["off"])
        low, high = test.confidence_interval(1 - 0.05 / 3)
        assert (float(rows[arm]["low"]), float(rows[arm]["high"])) == pytest.approx((low, high))
        difference = statistics.fmean(values[arm]) - statistics.fmean(values["off"])
        line = next(line for line in text.splitlines() if line.strip().startswith(NAMES[arm]))
        assert f"[{signed(low, places)}, {signed(high, places)}]" in line
        assert signed(difference, places) in line
    assert "Where the effect comes from" in text
    assert "Bonferroni for 3 arms" in text
    assert text.count("Target accuracy") == 1
    assert "input: reached by" in text
    page = Path("out/report.html").read_text()
    assert "Where the effect comes from" in page
    assert f"gradcent compare {HERE}:toy --seeds 5 --arms off,all,hidden,input" in page


NAMES = {"all": "all layers", "hidden": "the hidden layers", "input": "the input layer"}


def test_each_arm_centralizes_its_own_layers(capsys):
    """The sums of the weight vectors move only in the layers that the arm leaves alone."""
    import torch
    from compare_fixtures import toy

    import gradcent
    from gradcent_lab.run.example_plan import plan_experiment, with_plan

    experiment = toy()
    inputs, targets = experiment.train_data.tensors
    moved = {}
    for layers in ("all", "hidden", "input"):
        torch.manual_seed(0)
        model = experiment.model()
        optimizer = experiment.optimizer(model.parameters())
        attach = {"layers": layers}
        gradcent.attach(optimizer, model, **with_plan(attach, plan_experiment(model, experiment, attach)))
        before = [model[index].weight.sum(1).detach().clone() for index in (0, 2)]
        for _ in range(3):
            experiment.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        after = [model[index].weight.sum(1).detach() for index in (0, 2)]
        moved[layers] = [not torch.allclose(a, b, atol=1e-5) for a, b in zip(before, after, strict=True)]
    assert moved == {"all": [False, False], "hidden": [True, False], "input": [False, True]}


def test_arms_work_with_tuning_and_the_stopping_rule(capsys):
    words = [f"{HERE}:toy", "--arms", "off,all,hidden", "--out", "out", "--epochs", "1"]
    words += ["--until-decided", "--max-seeds", "3", "--tune", "lr=0.01,0.1", "--tune-seeds", "1"]
    assert main(["compare", *words]) == 0
    text = capsys.readouterr().out
    assert "tuning 3 arms: 2 grid points, 6 runs" in text
    assert "with GC (hidden) lr" in text
    assert {arm: len(runs) for arm, runs in last_values().items()} == dict.fromkeys(
        ("off", "all", "hidden"), 3
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arms", "off,everything"], "there is no arm 'everything': choose off and some of all, conv"),
        (["--arms", "all,hidden"], "off is missing"),
        (["--arms", "off"], "name an arm with GC too"),
        (["--arms", "off,all,all"], "an arm is listed twice"),
        (["--arms", "off,all", "--layers", "conv"], "--layers and --arms exclude each other"),
        (["--arms", "off,all,linear"], "all and linear centralize the same weights of this model"),
        (["--arms", "off,conv"], "layers='conv': nothing would be centralized"),
    ],
)
def test_wrong_arms_get_one_line(capsys, words, message):
    assert main(["compare", f"{HERE}:toy", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert message in error


def test_a_script_has_no_arms(capsys):
    assert main(["compare", "--command", "true {seed} {gc}", "--arms", "off,all"]) == 2
    assert "--arms needs an Experiment" in capsys.readouterr().err


def test_explain_traces_an_experiment_on_its_first_batch(capsys):
    assert main(["explain", f"{HERE}:toy", "--json"]) == 0
    rows = {row["parameter"]: row for row in json.loads(capsys.readouterr().out)["parameters"]}
    assert (rows["0.weight"]["role"], rows["2.weight"]["role"]) == ("input", "hidden")
    # the level of the first layer, from the data itself
    import torch
    from compare_fixtures import toy

    from gradcent_lab.data.batches import Feed

    experiment = toy()
    batch = next(Feed(experiment.train_data, 32, seed=0, train=True, drop_last=True).epoch(0))
    x = batch.inputs.double()
    level = float((x.mean(1) ** 2 * x.shape[1]).sum() / (x**2).sum())
    assert rows["0.weight"]["level"] == pytest.approx(level, rel=1e-4)
    assert main(["explain", f"{HERE}:READY", "--layers", "hidden", "--brief"]) == 0
    assert "centralized: 1 of 4 tensors" in capsys.readouterr().out
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [f"{HERE}:network", "--layers", "hidden"],
            "--layers hidden needs a forward pass: give --example SHAPE",
        ),
        ([f"{HERE}:network", "--example", "1,x"], "--example 1,x: write the shape of an input"),
        ([f"{HERE}:network", "--example", "1,5"], "shapes cannot be multiplied"),
        ([f"{HERE}:toy", "--example", "1,8"], "an Experiment is traced on its own first batch"),
    ],
)
def test_wrong_examples_get_one_line(capsys, words, message):
    assert main(["explain", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert message in error


def test_explain_takes_an_example_by_its_shape(capsys):
    assert main(["explain", f"{HERE}:network", "--example", "4,8", "--layers", "input", "--brief"]) == 0
    assert "centralized: 1 of 4 tensors" in capsys.readouterr().out
