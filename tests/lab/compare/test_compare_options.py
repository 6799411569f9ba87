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


def curves_by_arm(study="toy"):
    return {arm: [run[1] for _, run in sorted(stored(study, arm)[study].items())] for arm in ("off", "on")}


def epochs_to(curve, target):
    """The first evaluation that reaches the target, interpolated from the one before; None if none does."""
    before = None
    for line in curve:
        value, epoch = line["eval_metric"], line["epoch"]
        if value >= target:
            if before is None:
                return float(epoch)
            return before[0] + (target - before[1]) / (value - before[1]) * (epoch - before[0])
        before = (epoch, value)
    return None


def test_target_and_margin(capsys):
    """The share of runs that reach the target, the ratio and the verdict, recomputed from the stored curves."""
    words = [f"{HERE}:toy", "--seeds", "3", "--epochs", "4"]
    compare(capsys, *words)  # to have the runs
    curves = curves_by_arm()
    values = sorted(line["eval_metric"] for runs in curves.values() for run in runs for line in run)
    target = values[len(values) // 2] + 1e-3  # some evaluations reach it, some do not
    text = compare(capsys, *words, "--target", str(target), "--margin", "60")
    times = {arm: [epochs_to(run, target) for run in runs] for arm, runs in curves.items()}
    reached = {arm: sum(time is not None for time in runs) for arm, runs in times.items()}
    assert f"reached by {reached['off']} of 3 runs without GC and {reached['on']} of 3 with GC" in text
    logs = [
        math.log((b or 4.0) / (a or 4.0)) for a, b in zip(times["off"], times["on"], strict=True)
    ]  # a run that never reaches it counts with all its epochs
    assert f"With GC a run needs {math.exp(statistics.fmean(logs)):.2f} times" in text
    ends = [(a or math.inf, b or math.inf) for a, b in zip(times["off"], times["on"], strict=True)]
    first, later = sum(b < a for a, b in ends), sum(b > a for a, b in ends)
    assert f"it is first in {first} of 3 pairs, later in {later}" in text
    never = compare(capsys, *words, "--target", "101")
    assert "reached by 0 of 3 runs without GC and 0 of 3 with GC" in never
    assert "No run reaches it within 4 epochs, so there is no ratio." in never

    last = {arm: [run[-1]["eval_metric"] for run in runs] for arm, runs in curves.items()}
    test = stats.ttest_rel(last["on"], last["off"])
    low, high = test.confidence_interval(0.95)
    shown = (low > 0 or high < 0) and test.pvalue < 0.05
    assert not shown, "the fixture's arms differ: choose another margin for this test"
    bound = max(abs(low), abs(high))
    wide = compare(capsys, *words, "--margin", f"{bound * 1.01:.6f}")
    assert "verdict: no difference larger than" in wide
    quoted = float(wide.split("no difference larger than ")[1].split()[0])
    assert bound <= quoted <= bound * 1.2  # rounded up to two digits, so that the statement stays true
    narrow = compare(capsys, *words, "--margin", f"{bound * 0.99:.6f}")
    assert "verdict: inconclusive" in narrow


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


@pytest.mark.parametrize(
    ("function", "kind", "comment"),
    [
        ("broken_json", "JSONDecodeError", "# the user's line"),
        ("broken_in_a_worker", "JSONDecodeError", "# the user's line"),
        ("torch_raises", "ValueError", "# the user's line of the loss"),
    ],
)
def test_errors_name_the_users_line(capsys, function, kind, comment):
    """Not the line of torch, of Python's library or of a worker process in which the error was raised."""
    lines = (Path(__file__).parents[1] / "compare_fixtures.py").read_text().splitlines()
    number = next(n for n, line in enumerate(lines, start=1) if line.endswith(comment))
    error = fails(capsys, f"{HERE}:{function}", "--seeds", "1")
    assert f"fails on the first batch: {kind}: " in error
    assert f"(compare_fixtures.py, line {number})" in error


def test_recalibrated_statistics_from_the_command_line(capsys):
    """The option swaps what is judged and what is the control, on equal weights; both are columns of the table."""
    plain = compare(capsys, f"{HERE}:batch_norm", "--seeds", "3")
    rows = [next(csv.DictReader(Path("out/table.csv").read_text().splitlines()))]
    runs = {arm: stored("batch-norm", arm)["batch-norm"] for arm in ("off", "on")}
    page = Path("out/report.html").read_text()
    assert "BatchNorm control" in page
    assert "with re-estimated instead of running BatchNorm statistics" in page
    estimated = compare(capsys, f"{HERE}:batch_norm", "--seeds", "3", "--recalibrate-bn")
    rows.append(next(csv.DictReader(Path("out/table.csv").read_text().splitlines())))
    assert "with running instead of re-estimated BatchNorm statistics" in Path("out/report.html").read_text()
    # running statistics in the one are the control in the other
    assert float(rows[0]["difference"]) == pytest.approx(float(rows[1]["bn_control"]))
    assert float(rows[1]["difference"]) == pytest.approx(float(rows[0]["bn_control"]))
    assert rows[0]["difference"] != rows[0]["bn_control"]
    controls = [
        runs["on"][seed][1][-1]["eval_metric_bn_control"] - runs["off"][seed][1][-1]["eval_metric_bn_control"]
        for seed in range(3)
    ]
    assert float(rows[0]["bn_control"]) == pytest.approx(statistics.fmean(controls))
    assert "With re-estimated BatchNorm statistics:" in plain
    assert "With running BatchNorm statistics:" in estimated


@pytest.mark.slow
@pytest.mark.distributed
def test_tuning_and_stopping_with_two_workers_give_the_same_numbers(capsys):
    words = [f"{HERE}:toy", "--epochs", "1", "--tune", "lr=0.01,0.1", "--tune-seeds", "1"]
    words += ["--until-decided", "--max-seeds", "3"]
    tables = {}
    for workers in ("1", "2"):
        out = f"out-{workers}"
        assert main(["compare", *words, "--workers", workers, "--out", out]) == 0
        text = capsys.readouterr().out
        assert "tuning both arms: 2 grid points, 4 runs" in text
        tables[workers] = (Path(out, "table.csv").read_text(), Path(out, "table-1.md").read_text())
    assert tables["1"] == tables["2"]


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


def test_quantities_of_a_script_that_figures_cannot_draw_are_left_out():
    from gradcent_lab.compare.script import read_lines

    printed = '{"epoch": "one", "acc": 1, "train_loss": "2.0", "seconds": [3], "lr": true, "note": "kept", "x": null}'
    assert read_lines(printed, "acc") == [{"epoch": 1, "acc": 1, "note": "kept", "eval_metric": 1}]
    assert read_lines('{"epoch": 5, "acc": 1, "train_loss": 2}', "acc") == [
        {"epoch": 5, "acc": 1, "train_loss": 2, "eval_metric": 1}
    ]
