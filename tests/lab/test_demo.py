"""`gradcent demo`, cut down: what it prints and writes, and that it repeats to the last digit."""

import pytest
import torch

from gradcent_lab.cli import main
from gradcent_lab.experiment import digits as demo

SHORT = ["demo", "--seeds", "2", "--epochs", "1", "--workers", "1"]


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_demo_prints_a_verdict_writes_a_report_and_repeats_itself(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    assert main(SHORT) == 0
    text = capsys.readouterr().out
    for words in (
        "Does gradient centralization (GC) help a small network read digits?",
        "898 images to train, 899 to test",
        "2 seeds, each without GC and with GC",
        "verdict:",
        "gradcent.attach(optimizer, model)",
        "gradcent compare your_module:your_function",
        "gradcent-demo/report.html",
    ):
        assert words in text, words
    out = tmp_path / "gradcent-demo"
    first = (out / "table.csv").read_text()
    assert (out / "curves.png").stat().st_size > 5000
    assert "gradcent demo --seeds 2 --epochs 1" in (out / "report.html").read_text()

    assert main(SHORT) == 0
    text = capsys.readouterr().out
    assert "has 4 runs of an earlier demo: redoing them" in text
    assert "All 4 runs repeat the earlier demo's numbers to the last digit." in text
    assert (out / "table.csv").read_text() == first

    assert main([*SHORT, "--resume"]) == 0
    text = capsys.readouterr().out
    assert "has 4 runs finished and 0 begun: going on from there" in text
    assert text.count("(already there)") == 4


def test_a_changed_number_is_noticed(tmp_path, capsys):
    from gradcent_lab.commands.demo import repeated
    from gradcent_lab.store.records import load

    assert main([*SHORT, "--out", str(tmp_path)]) == 0
    now, before = load(tmp_path / "runs"), load(tmp_path / "runs")
    assert "All 4 runs repeat" in repeated(before, now)
    before[0].curves[0]["eval_metric"] += 1e-13
    assert "1 of 4 runs differ" in repeated(before, now)
    assert "other settings" in repeated([], now)


def test_the_demo_is_what_it_says():
    experiment = demo.experiment()
    assert (experiment.epochs, experiment.batch_size) == (20, 64)
    optimizer = experiment.optimizer(demo.network().parameters())
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 5e-4)
    schedule = experiment.schedule(optimizer, 14)
    assert sorted(schedule.milestones) == [6 * 14, 12 * 14, 18 * 14]
    train, test = demo.data()
    assert len(train) + len(test) == 1797


def test_bad_numbers_are_refused(capsys):
    assert main(["demo", "--seeds", "0"]) == 2
    assert capsys.readouterr().err == "gradcent demo: --seeds 0: give 1 or more\n"
