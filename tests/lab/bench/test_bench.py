"""`gradcent bench`: that it measures what it says, on lists that are the real models', and judges by its targets."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
from pathlib import Path

import pytest
import torch

from gradcent_lab.bench import implementations as contenders
from gradcent_lab.bench import measurements as figures
from gradcent_lab.bench import parameter_lists as lists
from gradcent_lab.bench import report as table
from gradcent_lab.bench import timing as measure
from gradcent_lab.cli import main

RESULTS = Path(__file__).resolve().parents[3] / "results" / "bench" / "bench.json"


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16"])
def test_the_lists_are_torchvisions_models(name: str) -> None:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    with torch.device("meta"):
        model = getattr(models, name)()
    real = sorted(tuple(each.shape) for each in model.parameters())
    assert sorted(shape for shape, _ in lists.LISTS[name]()) == real


def test_gpt2s_list_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    real = sorted(tuple(each.shape) for each in model.parameters())
    assert sorted(shape for shape, _ in lists.gpt2_small()) == real


def test_the_slow_ones_take_part_in_every_fourth_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "OTHER_ELEMENTS", 16)
    order: list[str] = []
    steps = {name: (lambda name=name: order.append(name)) for name in ("ours", "fused", "slow")}
    times = measure.interleaved(steps, 12, seldom=("slow",))
    assert {name: len(each) for name, each in times.items()} == {"ours": 12, "fused": 12, "slow": 3}
    rounds = order[3:]  # the first turn of each is not counted
    after = set(itertools.pairwise(rounds))
    assert {("ours", "fused"), ("fused", "ours"), ("fused", "slow"), ("slow", "fused")} <= after


def test_the_interval_of_a_median_holds_the_true_one() -> None:
    chance = random.Random(0)
    held = 0
    for _ in range(400):
        times = {"with": [chance.lognormvariate(0, 0.1) for _ in range(25)], "without": [1.0] * 25}
        low, high = measure.noise(times, "with", "without")
        held += low <= 1 <= high
    # three binomial deviations of slack below; and not always, or it would say nothing
    assert 0.95 - 0.033 <= held / 400 < 1


def test_temporaries_are_counted() -> None:
    shape = (8, 16)
    tensors = contenders.Tensors([(shape, lists.Layout.rows(shape)), ((8,), None)])
    found = contenders.contenders(tensors, "SGDM")
    assert 0 < measure.temporaries(found[contenders.OURS]) < 4096  # the bookkeeping of the native kernels
    # the usual loop makes a column of means and their negatives
    assert measure.temporaries(found[figures.NAIVE]) == 2 * 8 * 4


@pytest.mark.parametrize("optimizer", contenders.OPTIMIZERS)
def test_all_forms_take_the_same_step(optimizer: str) -> None:
    """All contenders share weights and states, so each must do what the others do; with GC where it says so."""
    shape = (8, 16)
    listed = [(shape, lists.Layout.rows(shape)), ((8,), None)]
    results = {}
    for name in contenders.contenders(contenders.Tensors(listed), optimizer):
        tensors = contenders.Tensors(listed)
        step = contenders.contenders(tensors, optimizer)[name]  # one step with GC has been taken
        step()
        results[name] = [each.detach().clone() for each in tensors.parameters]
    plain = results.pop("torch loop")
    for name, got in results.items():
        centred = name == contenders.OURS or "GC" in name or "centralize" in name
        same = [torch.allclose(a, b, rtol=1e-5, atol=1e-8) for a, b in zip(got, plain, strict=True)]
        assert same == [not centred, True], name


def test_the_committed_run_is_judged_as_the_code_judges() -> None:
    found = json.loads(RESULTS.read_text())
    assert table.targets(found) == found["targets"]
    missed = sum(not row["reached"] for row in found["targets"])
    assert f"targets reached: {len(found['targets']) - missed} of {len(found['targets'])}" in table.verdict(
        found["targets"]
    )
    rows = table.heading(found["machine"]).splitlines()[-1], *map(table.step, found["steps"])
    assert len({len(row) for row in rows}) == 1  # a straight table


def test_a_folder_that_cannot_be_written_is_reported_before_measuring(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "bench.json").write_text("old")

    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(figures, "steps", lambda *_: pytest.fail("it measures first"))
    assert main(["bench", "--quick", "--rounds", "5", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "cannot write" in captured.err
    assert "Read-only file system" in captured.err
    assert captured.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    assert (tmp_path / "bench.json").read_text() == "old"


@pytest.mark.parametrize("name", ["bench.json", "bench.png"])
def test_a_folder_in_place_of_a_file_is_reported_before_measuring(
    tmp_path, monkeypatch, capsys, name
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(figures, "steps", lambda *_: pytest.fail("it measures first"))
    assert main(["bench", "--quick", "--rounds", "5", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert f"{name} (Is a directory)" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("name", ["bench.json", "bench.png"])
def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path, monkeypatch, capsys, name) -> None:
    """The disk fills up while the results are written: the files of the last time stay whole."""
    found = json.loads(RESULTS.read_text())
    for file in ("bench.json", "bench.png"):
        (tmp_path / file).write_text("old")
    steps = {(each["list"], each["optimizer"]): each for each in found["steps"]}
    passes = {each["list"]: each for each in found["centralize"]}
    monkeypatch.setattr(figures, "steps", lambda listed, optimizer, _: steps[listed, optimizer])
    monkeypatch.setattr(figures, "centralize_pass", lambda listed, _: passes[listed])
    monkeypatch.setattr(figures, "training_step", lambda _: found["training_step"])
    fsync, written = os.fsync, []

    def fill(descriptor: int) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        if f".{name}." in target and os.fstat(descriptor).st_size:  # not the probe, which is empty
            written.append(target)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fill)
    assert main(["bench", "--quick", "--rounds", "5", "--out", str(tmp_path)]) == 2
    assert len(written) == 1
    assert "no space left" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.png"]
