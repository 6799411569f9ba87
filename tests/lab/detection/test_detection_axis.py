import json
import sys
from pathlib import Path

import pytest
import torch
from detection_sets import real

from gradcent_lab import recipes
from gradcent_lab.recipes.builders import unet
from gradcent_lab.recipes.detection_evidence import detection_table, same_bits
from gradcent_lab.recipes.presentation import wrong_axis as axis
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.scheduler import run_study

ROOT = Path(__file__).resolve().parents[3]


def test_observed_shares_are_those_of_the_definition():
    torch.manual_seed(0)
    model = unet.UNet(4)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    seen = unet.observe(model)
    total = mean = removed = left = 0.0
    for layer in (model.up2, model.up1):
        g = layer.weight.grad.double()  # (in, out, 2, 2)
        mu = g.mean((0, 2, 3), keepdim=True)
        turned = g - g.mean((1, 2, 3), keepdim=True)
        total += float(g.square().sum())
        mean += float((mu.square() * g[:, :1].numel()).sum())
        removed += float((g - turned).square().sum())
        left += float((turned.mean((0, 2, 3)).square() * g[:, :1].numel()).sum())
    assert seen["mean"] == pytest.approx(mean / total, rel=1e-4)
    assert seen["wrong_removed"] == pytest.approx(removed / total, rel=1e-4)
    assert seen["wrong_left"] == pytest.approx(left / total, rel=1e-4)
    assert seen["sum up1 2"] == pytest.approx(model.up1.weight[:, 2].sum().item(), abs=1e-6)


def test_only_the_right_axis_holds_the_sums(tmp_path):
    root = real("penn-fudan")
    records = run_study(recipes.get("unet").study("smoke"), tmp_path, data=root, options=Options(cpu=True))
    moved = {record.arm: axis.drift(record.iterations()) for record in records}
    assert moved["on"] < 1e-6
    assert moved["off"] > 100 * moved["on"]
    assert moved["wrong axis"] > 100 * moved["on"]
    energy, drifts = axis.tables(records)
    assert [row[0] for row in energy.rows] == [row[0] for row in drifts.rows] == ["off", "on", "wrong axis"]


def test_the_example_shows_it(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.delitem(sys.modules, "compare_unet", raising=False)
    import wrong_axis

    monkeypatch.setattr(wrong_axis, "STEPS", 10)
    on, turned = wrong_axis.train(None, True), wrong_axis.train(wrong_axis.WRONG, True)
    assert wrong_axis.drift(on[0]) < 1e-5
    assert wrong_axis.drift(turned[0]) > 1e-3
    assert wrong_axis.drift(turned[1]) < 1e-5, "along its own axis it does hold them"


def test_committed_evidence_says_what_the_docs_say():
    folder = ROOT / "results" / "detection"
    evidence = json.loads((folder / "evidence.json").read_text())
    tables = (folder / "tables.md").read_text()
    assert detection_table(evidence).markdown() in tables
    page = (ROOT / "docs" / "detection.md").read_text()
    for line in tables.splitlines():
        if line.startswith("|"):
            assert line in page, f"docs/detection.md lacks or has changed: {line}"


def test_committed_evidence_is_above_untrained_and_repeated():
    evidence = json.loads((ROOT / "results" / "detection" / "evidence.json").read_text())
    for arm in evidence["arms"]:
        assert arm["repeated"] is True
        for name, value in arm["last"].items():
            assert value > evidence["untrained"][name] + 3, name


def test_runs_that_differ_are_not_the_same(tmp_path):
    from dataclasses import replace

    root = real("penn-fudan")
    from test_detection_training import QUICK, quick_study

    (record,) = run_study(quick_study(), tmp_path / "a", data=root, options=QUICK)
    (twin,) = run_study(quick_study(), tmp_path / "b", data=root, options=QUICK)
    assert same_bits(record, twin)
    assert not same_bits(record, replace(twin, curves=[{**twin.curves[0], "train_loss": 0.0}]))
    document = json.loads((twin.path / "detection.json").read_text())
    (twin.path / "detection.json").write_text(json.dumps({**document, "final_weights": "0"}))
    assert not same_bits(record, twin)
