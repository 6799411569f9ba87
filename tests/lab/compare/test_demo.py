"""`gradcent demo`, cut down: what it prints and writes, and that it repeats to the last digit."""

import pytest
import torch

from gradcent_lab.cli import main
from gradcent_lab.compare import digits as demo

SHORT = ["demo", "--seeds", "2", "--epochs", "2", "--workers", "1"]


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
        "What does gradient centralization (GC) do? Three cases.",
        "The tasks were chosen to show three cases.",
        "200 images to train",
        "2 seeds, each without GC and with GC",
        "Learns faster: digits at epoch 1",
        "Given time, the gap closes: epoch 2",
        "Where it hurts: brightness as label",
        'the same with layers="hidden"',
        'layers="all": accuracy',
        'layers="hidden": accuracy',
        "gradcent.attach(optimizer, model)",
        "gradcent compare your_module:your_function",
        "gradcent-demo/report.html",
    ):
        assert words in text, words
    before, after = text.split("1/10")
    said = " ".join(before.split())  # before the first run
    assert "GC in the input layer can hurt here." in said
    assert 'Try layers="hidden" first.' in said
    assert after.count("GC removes") == 0
    out = tmp_path / "gradcent-demo"
    first = (out / "table.csv").read_text()
    assert (out / "demo.png").stat().st_size > 5000
    assert "gradcent demo --seeds 2 --epochs 2" in (out / "report.html").read_text()

    assert main(SHORT) == 0
    text = capsys.readouterr().out
    assert "has 10 runs of an earlier demo: redoing them" in text
    assert "All 10 runs repeat the earlier demo's numbers to the last digit." in text
    assert (out / "table.csv").read_text() == first

    assert main([*SHORT, "--resume"]) == 0
    text = capsys.readouterr().out
    assert "has 10 runs finished and 0 begun: continuing from there" in text
    assert text.count("(finished already)") == 10


def test_a_changed_number_is_noticed(tmp_path, capsys):
    from gradcent_lab.commands.demo import repeated
    from gradcent_lab.store.records import load

    assert main([*SHORT, "--out", str(tmp_path)]) == 0
    now, before = load(tmp_path / "runs"), load(tmp_path / "runs")
    assert "All 10 runs repeat" in repeated(before, now)
    before[0].curves[0]["eval_metric"] += 1e-13
    assert "1 of 10 runs differ" in repeated(before, now)
    assert "other settings" in repeated([], now)


def test_the_demo_is_what_it_says():
    reads, bright = demo.digits(), demo.brightness()
    assert (reads.epochs, reads.batch_size, len(reads.train_data)) == (40, 25, 200)
    assert (bright.epochs, bright.batch_size, len(bright.train_data)) == (20, 50, 400)
    for experiment in (reads, bright):
        train, test = experiment.train_data.tensors[0], experiment.eval_data.tensors[0]
        assert len(test) == 500
        known = {image.numpy().tobytes() for image in train}
        assert not any(image.numpy().tobytes() in known for image in test)
    # the label of the second task is the brightness and nothing else
    images, labels = bright.train_data.tensors
    means = images.mean((1, 2, 3))
    assert means[labels == 1].min() > means[labels == 0].max()


def test_an_early_epoch_is_the_same_run_cut_short(tmp_path):
    from gradcent_lab.compare.three_cases import until_epoch
    from gradcent_lab.experiment.run_config import ON
    from gradcent_lab.run.scheduler import run_pairs

    (long,) = run_pairs(demo.digits(4), [ON], [0], tmp_path)
    (short,) = run_pairs(demo.digits(2), [ON], [0], tmp_path)
    cut = until_epoch(long, 2)
    assert cut.last == short.last
    assert [line["train_loss"] for line in cut.curves] == [line["train_loss"] for line in short.curves]


def test_bad_numbers_are_refused(capsys):
    assert main(["demo", "--seeds", "0"]) == 2
    assert capsys.readouterr().err == "gradcent demo: --seeds 0: give 1 or more\n"


def test_the_forecast_warns_about_brightness_alone_and_from_the_data():
    """The share of the label's variance that the image mean explains, without the lab."""
    import numpy as np

    from gradcent_lab.compare.three_cases import forecasts

    said = {name: result.sentence() for name, result in forecasts().items()}
    assert "input layer can hurt" not in said["digits"]
    images, labels = demo.brightness().train_data.tensors
    means, labels = images.mean((1, 2, 3)).double().numpy(), labels.numpy()
    between = sum((labels == k).sum() * (means[labels == k].mean() - means.mean()) ** 2 for k in (0, 1))
    explained = between / ((means - means.mean()) ** 2).sum()
    assert explained > 0.5
    quoted = int(said["brightness"].split("The mean of the input explains ")[1].split(" %")[0])
    assert abs(quoted - 100 * explained) < 6  # read from the batches of 60 steps, not from each image once
    assert np.isfinite(explained)
