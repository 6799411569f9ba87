"""`gradcent run`, `list` and `doctor` as a user types them."""

from __future__ import annotations

import json
import os

import make_sets
import pytest
from make_sets import class_folders

from gradcent_lab.cli import main
from gradcent_lab.store import records as store


@pytest.fixture
def data(tmp_path, monkeypatch):
    root = tmp_path / "data"
    class_folders(root / "mini-imagenet", 8, 4, 4)
    monkeypatch.setenv("GRADCENT_DATA", str(root))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("gradcent_lab.analysis.training_speed.PROBE_SECONDS", 0.02)
    return root


def test_run_then_skip_then_list(tmp_path, data, capsys):
    out = str(tmp_path / "runs")
    assert main(["run", "fig5", "--scale", "smoke", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "checks that it runs, shows nothing else" in said
    assert "BN+WS" in said
    assert f"gradcent report {out}" in said
    assert len(store.load(out)) == 4
    assert main(["run", "fig5", "--scale", "smoke", "--out", out]) == 0
    assert "4 of 4 runs were finished already" in capsys.readouterr().out
    assert main(["list", "--root", out]) == 0
    listed = capsys.readouterr().out
    line = next(line for line in listed.splitlines() if line.startswith("fig5 "))
    assert line.split()[-5:] == ["40", "12", "20", "4", "4"]  # runs at each scale, finished runs
    assert main(["list", "fig5", "--root", out]) == 0
    assert "images/s of the finished runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([], "runs     8 in runs/table3; 2 in runs/table2, which has the same runs (cell 5e-4)"),
        (["--cell", "5e-4"], "runs     2 in runs/table2, which has the same runs (cell 5e-4)"),
        (["--cell", "1e-4"], "runs     2 in runs/table3"),
    ],
)
def test_the_folder_of_shared_runs_is_named(tmp_path, monkeypatch, capsys, cells, words):
    make_sets.cifar100(tmp_path / "data" / "cifar-100-binary", 200, 100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("gradcent_lab.run.scheduler.run_tasks", lambda *_, **__: [])
    data = str(tmp_path / "data")
    assert main(["run", "table3", "--scale", "smoke", "--data", data, *cells]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert words in lines


def test_switches_cells_seeds_parts_and_numerics(tmp_path, data, capsys):
    out = str(tmp_path / "runs")
    common = ["run", "table5", "--scale", "smoke", "--out", out, "--cell", "R50GN", "--seeds", "2"]
    assert main([*common, "--set", "momentum=paper", "--shard", "1/2", "--precision", "bf16"]) == 0
    records = store.load(out)
    assert len(records) == 2
    assert {r.cell for r in records} == {"R50GN"}
    assert len({r.seed for r in records}) == 1
    assert records[0].config["settings"]["optimizer"]["dampening"] == 0.9
    assert records[0].config["numerics"]["precision"] == "bf16"
    assert "momentum=paper" in capsys.readouterr().out


def test_missing_sets_are_left_out_and_said(tmp_path, data, capsys):
    from make_sets import dogs

    dogs(data / "stanford-dogs")
    assert main(["run", "table6", "--scale", "smoke", "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "left out Stanford Cars" in said
    assert [r.cell for r in store.load(tmp_path / "runs")] == ["Stanford Dogs"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["run", "tabel5"], "did you mean table5"),
        (["run", "table5", "--scale", "big"], "no scale 'big'"),
        (["run", "table1", "--scale", "smoke"], "CIFAR-100 is not in"),
        (["run", "table5", "--scale", "smoke", "--set", "momentum"], "write SWITCH=CHOICE"),
        (["run", "table5", "--scale", "smoke", "--shard", "x"], "write I/N"),
        (["run", "table5", "--scale", "smoke", "--cell", "R9"], "has no cell 'R9'; it has R50BN"),
        (["run", "table5", "--scale", "smoke", "--workers", "0"], "give 1 or more"),
        (["run", "table5", "--scale", "smoke", "--data", "/no/such/folder"], "does not exist"),
        (["run", "table5", "--scale", "paper", "--download"], "cannot be downloaded by the lab"),
        (["run", "person-reid"], "there is no recipe"),
    ],
)
def test_mistakes_are_one_line(tmp_path, data, capsys, words, answer):
    extra = ["--out", str(tmp_path / "runs")] if words[0] == "run" else []
    assert main([*words, *extra]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_made(tmp_path, data, capsys):
    (tmp_path / "file").write_text("")
    words = ["run", "fig5", "--scale", "smoke", "--out", str(tmp_path / "file" / "runs")]
    assert main(words) == 2
    assert "cannot create the folder" in capsys.readouterr().err


def test_doctor(tmp_path, data, capsys):
    assert main(["doctor", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "32 training and 32 test images" in said
    assert "the complete set has 50,000 and 10,000" in said
    assert "CIFAR-10 " in said
    assert f"torch uses {os.environ.get('OMP_NUM_THREADS', '')}" in said
    assert main(["doctor", "--data", str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().out


def test_doctor_knows_the_detection_sets(tmp_path, capsys):
    """Every layout that tables 8 and 9 and the U-Net read counts as found, not as a folder without classes."""
    for name, count in {
        "penn-fudan/images": 170,
        "coco/train2017": 3,
        "balloon/train": 61,
        "balloon/val": 13,
    }.items():
        (tmp_path / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / name / f"{number:03}.jpg").touch()
    images = [{"coco_split": "train2017"}] * 337 + [{"coco_split": "val2017"}] * 302
    (tmp_path / "coco-mini").mkdir()
    (tmp_path / "coco-mini" / "instances.json").write_text(json.dumps({"images": images}))
    assert main(["doctor", "--out", str(tmp_path), "--data", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "ok Penn-Fudan pedestrians 128 training and 42 test images" in said
    assert "ok COCO, 639 images 337 training and 302 test images" in said
    assert "ok Balloons 61 training and 13 test images" in said
    assert "note COCO 2017 3 training and 0 test images" in said
    assert "faster-coco-eval" in said


def test_trackers_mirror_the_curves_or_are_refused(tmp_path, data, capsys, monkeypatch):
    import sys

    words = ["run", "fig5", "--scale", "smoke", "--cell", "BN", "--out", str(tmp_path / "runs"), "--track"]
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main([*words, "mlflow"]) == 2
    assert "pip install mlflow" in capsys.readouterr().err
    pytest.importorskip("tensorboard")
    assert main([*words, "tensorboard"]) == 0
    assert len(list((tmp_path / "runs").rglob("events.out.tfevents*"))) >= 2
