"""`gradcent compare` with each of its options: tuning, stopping, target, margin, scripts, trackers, bad input."""

import csv
import json
import math
import statistics
import sys
from pathlib import Path

import pytest
from scipy import stats

from gradcent_lab.cli import main

HERE = "compare_fixtures"
SCRIPT = Path(__file__).parents[1] / "compare_script.py"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")


def compare(capsys, *words):
    assert main(["compare", *words, "--out", "out"]) == 0
    return capsys.readouterr().out


def fails(capsys, *words):
    assert main(["compare", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


def stored(study, arm):
    """The stored runs of a study's arm by seed, read without the lab."""
    runs = {}
    for path in Path("out/runs", study).iterdir():
        config = json.loads((path / "config.json").read_text())
        if config["arm"]["name"] == arm:
            curves = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
            runs.setdefault(config["cell"], {})[config["seed"]] = (config, curves)
    return runs


def test_tuning_gives_both_arms_the_same_grid_and_compares_on_fresh_seeds(capsys):
    text = compare(capsys, f"{HERE}:toy", "--seeds", "2", "--tune", "lr=0.01,0.1", "--tune-seeds", "1")
    for arm, title in (("off", "without GC"), ("on", "with GC")):
        tuning = stored("toy-tuning", arm)
        assert set(tuning) == {"lr 0.01", "lr 0.1"}
        assert {seed for runs in tuning.values() for seed in runs} == {10_000}
        means = {
            cell: statistics.fmean(curves[-1]["eval_metric"] for _, curves in runs.values())
            for cell, runs in tuning.items()
        }
        best = max(means, key=means.get)
        assert f"{title} {best}" in text
        final = stored("toy", arm)["toy"]
        assert set(final) == {0, 1}
        for config, _ in final.values():
            assert f"lr {config['settings']['optimizer_groups'][0]['lr']:g}" == best
            assert config["settings"]["train_samples"] == 128  # all training data again
        settings = next(iter(next(iter(tuning.values())).values()))[0]["settings"]
        assert (settings["train_samples"], settings["eval_samples"]) == (102, 26)
    assert {"tuning.png", "tuning.svg"} <= {path.name for path in Path("out").iterdir()}
    assert "(chosen)" in Path("out/report.html").read_text()


def test_arms_with_different_tuned_values_are_one_comparison(capsys, monkeypatch):
    """Best against best is one row, although the arms run with different learning rates."""
    from gradcent_lab.analysis import tuning

    def different(self):
        return self.points[0 if self.arm == "off" else 1]

    monkeypatch.setattr(tuning.TunedArm, "best", property(different))
    text = compare(capsys, f"{HERE}:toy", "--seeds", "2", "--tune", "lr=0.01,0.1", "--tune-seeds", "1")
    assert "without GC lr 0.01; with GC lr 0.1" in text
    (row,) = csv.DictReader(Path("out/table.csv").read_text().splitlines())
    assert row["n"] == "2"


def test_until_decided_stops_by_the_rule_and_resumes_to_the_same_answer(capsys):
    words = ["--command", f"{sys.executable} {SCRIPT} --seed {{seed}} {{gc}}", "--metric", "accuracy"]
    first = compare(capsys, *words, "--until-decided", "--max-seeds", "8")
    off, on = (stored("command", arm)["command"] for arm in ("off", "on"))
    pairs = len(off)
    assert 3 <= pairs < 8
    difference = [on[s][1][-1]["accuracy"] - off[s][1][-1]["accuracy"] for s in range(pairs)]

    def e_value(values):
        n, t = len(values), stats.ttest_1samp(values, 0).statistic
        r, u = 0.25 / (0.25 + n), t * t / (n - 1)
        return math.sqrt(r) * ((1 + u) / (1 + r * u)) ** (n / 2)

    assert e_value(difference) >= 20
    assert all(e_value(difference[:n]) < 20 for n in range(3, pairs))
    assert "verdict: helps" in first
    assert f"e-value {e_value(difference):.3g}" in first
    again = compare(capsys, *words, "--until-decided", "--max-seeds", "8")
    assert first.split("verdict:")[1].split("Speed")[0] == again.split("verdict:")[1].split("Speed")[0]
    assert len(stored("command", "off")["command"]) == pairs


def test_seeds_added_after_a_look_are_judged_by_the_rule_that_allows_it(capsys):
    assert "e-value" not in compare(capsys, f"{HERE}:toy", "--seeds", "2")
    assert "e-value" not in compare(capsys, f"{HERE}:toy", "--seeds", "2")
    assert "e-value" in compare(capsys, f"{HERE}:toy", "--seeds", "3")
    assert "e-value" in compare(capsys, f"{HERE}:toy", "--seeds", "3")  # also when nothing is left to run


def test_target_and_margin(capsys):
    text = compare(capsys, f"{HERE}:toy", "--seeds", "2", "--target", "40", "--margin", "100")
    assert (
        "Target accuracy 40.0 % (given by --target): reached by 2 of 2 runs without GC and 2 of 2 with GC"
        in text
    )
    assert "margin 100 points" in text or "no difference larger than" in text or "verdict: helps" in text
    never = compare(capsys, f"{HERE}:toy", "--seeds", "2", "--target", "101")
    assert "reached by 0 of 2 runs without GC and 0 of 2 with GC" in never
    assert "No run reaches it within 2 epochs, so there is no ratio." in never


def test_every_printed_number_is_that_of_the_stored_runs(capsys):
    text = compare(capsys, f"{HERE}:toy", "--seeds", "5")
    off, on = (stored("toy", arm)["toy"] for arm in ("off", "on"))
    a, b = ([runs[s][1][-1]["eval_metric"] for s in range(5)] for runs in (off, on))
    differences = [y - x for x, y in zip(a, b, strict=True)]
    test = stats.ttest_rel(b, a)
    low, high = test.confidence_interval(0.95)
    (row,) = csv.DictReader(Path("out/table.csv").read_text().splitlines())
    expected = {
        "mean_without": statistics.fmean(a),
        "std_without": statistics.stdev(a),
        "mean_with": statistics.fmean(b),
        "difference": statistics.fmean(differences),
        "low": low,
        "high": high,
        "p": test.pvalue,
        "better": sum(d > 0 for d in differences),
        "worse": sum(d < 0 for d in differences),
    }
    assert {key: float(row[key]) for key in expected} == pytest.approx(expected)
    assert f"better in {expected['better']}, worse in {expected['worse']} of 5 pairs" in text
    target = statistics.median(a)
    assert f"Target accuracy {target:.1f} %" in text or f"Target accuracy {target:.2f} %" in text


def test_one_run_that_diverges_does_not_end_the_study(capsys):
    words = [
        "--command",
        f"{sys.executable} {SCRIPT} --mode nan --seed {{seed}} {{gc}}",
        "--metric",
        "accuracy",
    ]
    text = compare(capsys, *words, "--seeds", "6")
    assert "verdict: hurts" in text
    assert "Diverged: 0 of 6 runs without GC, 6 with GC" in text
    assert "Do not use GC here" in text
    assert "gradcent.attach" not in text  # the advice follows from the verdict
    assert "gradcent.attach" not in Path("out/report.html").read_text()


def test_a_script_may_write_a_file_and_use_its_own_options(capsys):
    command = f"{sys.executable} {SCRIPT} --seed {{seed}} {{gc}}"
    text = compare(
        capsys,
        "--command",
        f"{command} --file lines-{{seed}}.txt",
        "--metric",
        "accuracy",
        "--metric-file",
        "lines-{seed}.txt",
        "--seeds",
        "1",
        "--gc-on=--gc",
    )
    assert "The pairing is the script's own" in text
    assert "With GC a run needs" in text  # the JSON lines of the epochs give a speed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [f"{HERE}:toy", "--tune", "speed=1,2"],
            "--tune speed: SGD has dampening, lr, momentum, weight_decay",
        ),
        ([f"{HERE}:toy", "--tune", "lr="], "the grid is empty"),
        ([f"{HERE}:two_rates", "--tune", "lr=0.1,0.2"], "cannot replace several values (0.01, 0.1)"),
        ([f"{HERE}:one_cycle", "--tune", "lr=0.1,0.2"], "schedule sets the learning rate itself"),
        ([f"{HERE}:toy", "--margin", "0"], "--margin 0: give a number above 0"),
        ([f"{HERE}:toy", "--margin=-1"], "--margin -1: give a number above 0"),
        ([f"{HERE}:toy", "--until-decided", "--seeds", "3"], "use --max-seeds instead of --seeds"),
        ([f"{HERE}:toy", "--max-seeds", "3"], "--max-seeds limits --until-decided"),
        ([f"{HERE}:toy", "--track", "paper"], "--track paper: accelerate has aim, clearml"),
        ([f"{HERE}:shared_model", "--seeds", "1"], "returns the same object twice"),
        ([], "give either MODULE:FUNCTION or --command"),
        (["--command", "true {gc}"], "must contain {seed}"),
        (["--command", "true {seed}"], "must contain {gc}"),
        (["--command", "true {seed} {gc}", "--gc-on", "", "--gc-off", ""], "are equal"),
        (["--command", "no-such-program {seed} {gc}"], "cannot start no-such-program"),
        (
            ["--command", f"{sys.executable} {SCRIPT} --mode silent --seed {{seed}} {{gc}}"],
            "no JSON line with the key",
        ),
        (
            ["--command", f"{sys.executable} {SCRIPT} --mode fails --seed {{seed}} {{gc}}"],
            "status 1: no data here",
        ),
    ],
    ids=lambda value: value[-1][-20:] if isinstance(value, list) and value else "",
)
def test_bad_input_gets_one_line(capsys, words, message):
    assert message in fails(capsys, *words)


def test_an_object_works_as_well_as_a_function(capsys):
    assert "verdict:" in compare(capsys, f"{HERE}:READY", "--seeds", "1")


def test_fractions_announced_as_percentages_get_a_warning(capsys):
    text = compare(capsys, f"{HERE}:fractions", "--seeds", "1")
    assert "metric returns fractions between 0 and 1" in text


def test_the_batch_size_of_a_data_loader_is_announced(capsys):
    assert "batch 16" in compare(capsys, f"{HERE}:loader", "--seeds", "1")


def test_runs_are_logged_to_a_local_tracker(capsys):
    compare(capsys, f"{HERE}:toy", "--seeds", "1", "--track", "tensorboard")
    assert list(Path("out/runs").rglob("events.out.tfevents*"))


def test_interrupting_says_what_is_kept(capsys, monkeypatch):
    from gradcent_lab.run import scheduler

    original, calls = scheduler.run_task, []

    def interrupted(*words):
        calls.append(words)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*words)

    monkeypatch.setattr(scheduler, "run_task", interrupted)
    error = fails(capsys, f"{HERE}:toy", "--seeds", "2", "--out", "out")
    assert (
        "interrupted: 2 of 4 runs are finished and kept in out/runs; repeat the command to continue" in error
    )
