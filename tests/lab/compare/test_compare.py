"""`gradcent compare`: a whole run, what it reuses, what it changes, and one line for everything wrong."""

import csv
import json
import sys

import pytest

from gradcent_lab.cli import main
from gradcent_lab.errors import UserError
from gradcent_lab.experiment import user as compare

HERE = "compare_fixtures"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def fails(capsys, *words):
    assert main(["compare", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gradcent compare: ")
    assert error.count("\n") == 1, error
    return error


def test_a_comparison_prints_and_writes_everything(capsys, tmp_path):
    assert main(["compare", f"{HERE}:toy", "--seeds", "2", "--out", "out"]) == 0
    text = capsys.readouterr().out
    assert "warning: 2 seeds can show only a very large effect" in text
    assert "2 of 4 parameters (160 weights)" in text
    assert "verdict:" in text
    assert "gradcent.attach(optimizer, model)" in text
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {
        "report.html",
        "curves.png",
        "curves.svg",
        "differences.png",
        "table.md",
        "table.csv",
        "table.tex",
    }
    (row,) = csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines())
    assert row["n"] == "2"
    # the means in the table are those of the stored runs
    runs = [json.loads(p.read_text()) for p in (tmp_path / "out" / "runs").rglob("result.json")]
    assert len(runs) == 4
    assert float(row["mean_without"]) + float(row["mean_with"]) == pytest.approx(
        sum(r["last"] for r in runs) / 2
    )
    weights = [r["initial_weights"] for r in runs]
    assert len(set(weights)) == 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"gradcent compare {HERE}:toy --seeds 2" in page

    assert main(["compare", f"{HERE}:toy", "--seeds", "2", "--out", "out"]) == 0
    assert "4 of 4 runs were there already (--fresh redoes them)" in capsys.readouterr().out
    assert main(["compare", f"{HERE}:toy", "--seeds", "2", "--out", "out", "--fresh"]) == 0
    again = capsys.readouterr().out
    assert "finished already" not in again
    (repeated,) = csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines())
    assert repeated == row  # to the last digit


def test_options_reach_the_runs(capsys, tmp_path):
    words = ["--seeds", "1", "--epochs", "1", "--optimizer", "Adam(betas=(0.8, 0.99))", "--lr", "0.01"]
    where = ["--at", "update", "--layers", "linear", "--decay", "coupled"]
    assert main(["compare", f"{HERE}:toy", *words, *where, "--out", "out"]) == 0
    text = capsys.readouterr().out
    assert 'gradcent.attach(optimizer, model, layers="linear", at="update", decay="coupled")' in text
    configs = [json.loads(p.read_text()) for p in (tmp_path / "out" / "runs").rglob("config.json")]
    assert [c["settings"]["optimizer"] for c in configs] == ["Adam", "Adam"]
    assert configs[0]["settings"]["optimizer_groups"][0]["betas"] == [0.8, 0.99]
    assert configs[0]["settings"]["optimizer_groups"][0]["lr"] == 0.01
    assert configs[0]["settings"]["epochs"] == 1
    on = next(c for c in configs if c["arm"]["attach"])
    assert on["arm"]["attach"] == {"layers": "linear", "at": "update", "decay": "coupled"}


def test_a_file_may_be_named_and_lr_alone_keeps_the_optimizer(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(f"from {HERE} import toy\n")
    assert (
        main(["compare", "mine.py:toy", "--seeds", "1", "--epochs", "1", "--lr", "0.05", "--out", "out"]) == 0
    )
    assert "SGD, lr 0.05, 1 epochs, batch 32" in capsys.readouterr().out


@pytest.mark.slow
def test_two_at_a_time_gives_the_same_numbers(tmp_path):
    for workers, out in (("1", "one"), ("2", "two")):
        words = ["--seeds", "2", "--epochs", "1", "--workers", workers, "--out", out]
        assert main(["compare", f"{HERE}:toy", *words]) == 0
    assert (tmp_path / "one" / "table.csv").read_text() == (tmp_path / "two" / "table.csv").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere:toy"], "there is no module 'nowhere' in"),
        ([f"{HERE}.nowhere:toy"], f"there is no module '{HERE}.nowhere'"),
        ([HERE], "does not name a function: write module:function"),
        ([f"{HERE}:toys"], f"{HERE} has no toys: its functions are network, sgd, correct, toy"),
        ([f"{HERE}:NUMBER"], "is an int, not a function"),
        ([f"{HERE}:nothing_returned"], "returned nothing, not a gradcent_lab.experiment.Experiment"),
        ([f"{HERE}:a_dictionary"], "returned a dict, not"),
        ([f"{HERE}:needs_an_argument"], "must need no arguments, but has width: give them defaults"),
        ([f"{HERE}:raising"], "raised RuntimeError: the data is not here (compare_fixtures.py, line "),
        (
            [f"{HERE}:instance"],
            "Experiment.model must be a function that makes the model, afresh for every run",
        ),
        ([f"{HERE}:no_epochs"], "Experiment.epochs must be a whole number of 1 or more, not 0"),
        ([f"{HERE}:nothing_to_centralize"], "nothing would be centralized"),
        ([f"{HERE}:toy", "--layers", "conv"], "nothing would be centralized"),
        ([f"{HERE}:wrong_shape"], f"{HERE}:wrong_shape: the model fails on the first batch: RuntimeError: "),
        ([f"{HERE}:words_for_a_metric"], "Experiment.metric must return a tensor, one value per sample or"),
        ([f"{HERE}:loss_per_sample"], "one number, not a tensor of shape (32,)"),
        ([f"{HERE}:detached_loss"], "Experiment.loss does not depend on the model's weights"),
        (
            [f"{HERE}:broken_data"],
            "Experiment.eval_data fails on the first batch: KeyError: 'no such row' (comp",
        ),
        ([f"{HERE}:other_weights_every_time"], "two models built from the same seed differ"),
        ([f"{HERE}:toy", "--optimizer", "LBFGS"], "LBFGS evaluates the loss several times per step"),
        ([f"{HERE}:two_rates", "--lr", "0.1"], "--lr cannot replace several learning rates (0.01, 0.1)"),
        ([f"{HERE}:toy", "--optimizer", "Sgd"], "--optimizer Sgd: torch.optim has ASGD"),
        (
            [f"{HERE}:toy", "--optimizer", "SGD(0.1)"],
            "write a name, or 'SGD(momentum=0.9, weight_decay=5e-4)'",
        ),
        ([f"{HERE}:toy", "--optimizer", "SGD(nesterov=True)"], "--optimizer SGD(nesterov=True): Nesterov"),
        ([f"{HERE}:toy", "--seeds", "0"], "--seeds 0: give 1 or more"),
        ([f"{HERE}:toy", "--lr", "-1"], "--lr -1: give a number above 0"),
        (["nowhere.py:toy"], "there is no file nowhere.py"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, words, message):
    assert message in fails(capsys, *words)


def test_a_module_that_cannot_be_imported_says_why(capsys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lacking.py").write_text("import no_such_package\n")
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    assert "lacking needs a module that is not installed: no_such_package" in fails(capsys, "lacking:f")
    assert "importing broken failed: ZeroDivisionError: division by zero (broken.py, line 2)" in fails(
        capsys, "broken:f"
    )


def test_a_diverging_run_names_itself_and_the_way_out(capsys):
    error = fails(capsys, f"{HERE}:diverging", "--seeds", "1")
    assert "diverging off seed 0: the loss became" in error
    assert "lower the learning rate" in error


def test_what_fails_late_is_one_line_and_a_file(capsys, tmp_path):
    error = fails(capsys, f"{HERE}:late", "--seeds", "1", "--out", "out")
    assert "late failed in training: ValueError: too late (compare_fixtures.py, line " in error
    assert 'raise ValueError("too late")' in (tmp_path / "out" / "traceback.txt").read_text()


def test_the_rehearsal_leaves_the_generators_alone():
    import random

    import compare_fixtures
    import torch

    from gradcent_lab.experiment.run_config import ON
    from gradcent_lab.run.dry_run import prepare

    before = torch.get_rng_state(), random.getstate()
    prepare(compare_fixtures.toy(), "toy", [ON])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_the_model_is_built_once_for_all_checks_and_once_to_compare_weights():
    """Settings, facts, the attach check, the dry run and the tasks share one build."""
    from dataclasses import replace

    import compare_fixtures

    from gradcent_lab.compare.arms import PlannedArm, tasks_for
    from gradcent_lab.experiment.run_config import OFF, ON
    from gradcent_lab.experiment.spec import describe
    from gradcent_lab.run.dry_run import prepare

    toy, builds = compare_fixtures.toy(), []

    def model():
        builds.append(1)
        return toy.model()

    prepared = prepare(replace(toy, model=model), "toy", [ON])
    tasks = tasks_for([PlannedArm(arm, prepared.experiment) for arm in (OFF, ON)], range(3))
    assert len(builds) == 2
    assert str(prepared.arms["on"]).startswith("2 of ")
    assert len(tasks) == 6
    expected = describe(replace(toy, model=model))  # what an unprepared experiment shows
    assert all(task.config.settings == expected for task in tasks)


def test_optimizer_words():
    kind, options = compare.parse_optimizer("SGD(momentum=0.9, weight_decay=5e-4)")
    assert kind.__name__ == "SGD"
    assert options == {"momentum": 0.9, "weight_decay": 5e-4}
    with pytest.raises(UserError):
        compare.parse_optimizer("__import__('os').system('true')")


@pytest.mark.parametrize(
    ("command", "extra"), [(["demo"], "demo"), (["compare", f"{HERE}:toy"], "lab"), (["report"], "lab")]
)
def test_without_the_extra_the_pip_line_is_named(capsys, monkeypatch, command, extra):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert f"pip install -e '.[{extra}]' in a clone of gradcent" in error
    assert error.count("\n") == 1
