"""Recipes: frozen data at every scale, the paper's settings at the paper's, and all of them run at smoke."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import make_sets
import pytest
import torch

from gradcent_lab import models, recipes
from gradcent_lab.analysis import paper_claims
from gradcent_lab.data import SETS, find
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.study import tasks_of
from gradcent_lab.forecasting.calibration.outcomes import outcomes
from gradcent_lab.recipes.common import TINY_IMAGENET_WEIGHTS as TINY
from gradcent_lab.run.scheduler import run_study

REAL = os.environ.get("GRADCENT_DATA")
EVERY = [(name, scale.name) for name in recipes.RECIPES for scale in recipes.get(name).scales]


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The real sets where they are there, tiny ones in their layouts where not."""
    root = tmp_path_factory.mktemp("data")
    made = {
        "aircraft": make_sets.aircraft,
        "cars": make_sets.cars,
        "dogs": make_sets.dogs,
        "cub200": make_sets.cub200,
        "miniimagenet": lambda folder: make_sets.class_folders(folder, 8, 4, 4),
    }
    for name in (*made, "cifar100"):
        real = find(name, Path(REAL)) if REAL else None
        place = root / SETS[name].folders[0]
        if real is not None:
            place.symlink_to(real.resolve())
        elif name in made:
            made[name](place)
    weights = root / TINY
    weights.parent.mkdir()
    if REAL and (Path(REAL) / TINY).is_file():
        weights.symlink_to((Path(REAL) / TINY).resolve())
    else:
        from safetensors.torch import save_file

        save_file(models.make({"name": "resnet18"}, 200).half().state_dict(), weights)
    return root


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_studies_are_frozen_plain_data(name, scale):
    study = recipes.get(name).study(scale)
    assert study.scale.name == scale
    assert len(study.scale.description) > 20
    tasks = tasks_of(study, None)
    assert len({task.config.run_id for task in tasks}) == len(tasks)
    for task in tasks:
        settings = task.config.as_dict()["settings"]
        assert json.loads(json.dumps(settings)) == settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        study.name = "other"


# table8, table9 and unet run at smoke in test_detection_training.py and test_detection_axis.py
@pytest.mark.parametrize(
    "name", [name for name in recipes.RECIPES if "penn-fudan" not in recipes.get(name).data_sets]
)
def test_smoke(tmp_path, data, name):
    recipe = recipes.get(name)
    if "cifar100" in recipe.data_sets and find("cifar100", data) is None:
        pytest.skip("cifar100 is not under GRADCENT_DATA")
    study = recipe.study("smoke")
    records = run_study(study, tmp_path, data=data)
    assert len(records) == len(tasks_of(study, data))
    assert all(torch.isfinite(torch.tensor(record.last)) for record in records)
    assert all(record.curves for record in records)
    if any("train_loss" in line for line in records[0].curves):
        assert study.metric == records[0].metric_name
    if name == "theory":
        assert records[0].last == 0, [row for row in records[0].curves if not row["holds"]]
    if name == "forecast":
        check_forecast(records)
    if name == "fig4":
        rows = records[0].iterations()
        assert len(rows) == 2
        assert all(row["fc_norm_centralized"] <= row["fc_norm"] for row in rows)
    if name == "fig2":
        off, on = (record.last for record in records)
        assert on < 1e-12 < off
    if name == "table6" and REAL:
        counted = {record.cell: record.curves[0] for record in records}
        assert counted["CUB-200-2011"] == {"categories": 200, "training": 5994, "testing": 5794}


def check_forecast(records):
    """Theorem 4.1: with the input layer centralized a network cannot read the brightness of an image."""
    found = {entry.task.name: entry for entry in outcomes({record.cell: record.curves for record in records})}
    brightness = found["mlp relu, brightness, SGD"]
    assert brightness.train["all"].mean > 0.2
    assert brightness.train["hidden"].mean < brightness.train["all"].mean - 0.2
    assert brightness.explained > 0.8
    assert 0.05 < brightness.removed < 0.5
    assert found["mlp tanh, digits, SGD"].removed < 0.05 < found["mlp relu, digits, SGD"].removed


def settings(name, scale="paper", cell=0, **switches):
    return recipes.get(name).study(scale, switches).cells[cell].settings


def test_settings_of_the_paper():
    cifar = settings("table1")
    assert (cifar["epochs"], cifar["batch_size"]) == (200, 128)
    assert cifar["schedule"]["milestones"] == [60, 120, 180]
    assert cifar["optimizer"] == {"name": "SGDM", "lr": 0.1, "weight_decay": 5e-4}
    assert cifar["data"]["train"] is None
    rates = {c.name: c.settings["optimizer"] for c in recipes.get("table2").study("paper").cells}
    assert {name: spec["lr"] for name, spec in rates.items()} == {
        "SGDM": 0.1,
        "Adam": 0.001,
        "Adagrad": 0.01,
        "SGDW": 0.1,
        "AdamW": 0.001,
    }
    assert rates["SGDW"]["weight_decay"] == rates["AdamW"]["weight_decay"] == 1e-3
    assert len(recipes.get("table1").study("paper").seeds) == 10
    imagenet = settings("table5")
    assert (imagenet["epochs"], imagenet["batch_size"]) == (100, 256)
    assert imagenet["schedule"]["milestones"] == [30, 60, 90]
    assert imagenet["optimizer"]["weight_decay"] == 1e-4
    fine = settings("table7")
    assert fine["schedule"]["milestones"] == [50, 80]
    assert (fine["data"]["resize"], fine["data"]["size"]) == (512, 448)
    assert (
        len(recipes.get("table7").study("paper").seeds) == len(recipes.get("fig5").study("paper").seeds) == 10
    )
    mini = settings("fig5")
    assert (mini["epochs"], mini["batch_size"], mini["data"]["size"]) == (100, 128, 224)
    assert mini["schedule"]["milestones"] == [30, 60, 90]
    decays = [
        cell.settings["optimizer"]["weight_decay"] for cell in recipes.get("table3").study("paper").cells
    ]
    assert decays == [0, 1e-4, 2e-4, 5e-4, 1e-3]
    rates = [
        (c.settings["optimizer"]["name"], c.settings["optimizer"]["lr"])
        for c in recipes.get("table4").study("paper").cells
    ]
    assert rates == [
        *(("SGDM", lr) for lr in (0.05, 0.1, 0.2)),
        *(("Adam", lr) for lr in (0.0005, 0.001, 0.0015)),
    ]
    epochs = {cell.name: cell.settings["epochs"] for cell in recipes.get("table9").study("paper").cells}
    assert {name for name, number in epochs.items() if number == 24} == {"R101GN", "R50GN+WS"}
    assert {name for name, number in epochs.items() if number == 12} == set(epochs) - {"R101GN", "R50GN+WS"}
    coco = settings("table8")
    assert (coco["optimizer"]["lr"], coco["optimizer"]["weight_decay"], coco["batch_size"]) == (
        0.02,
        1e-4,
        16,
    )
    assert coco["schedule"]["milestones"] == [8, 11]
    # who is centralized: conv + FC unless the section says convolutions only
    for name, layers in {
        "table5": "conv",
        "table7": "all",
        "fig5": "all",
        "table8": "all",
        "table9": "all",
    }.items():
        assert recipes.get(name).study("paper").arms[1].attach == {"layers": layers}


def test_every_disagreement_is_a_switch():
    study = recipes.get("table1").study
    assert study("paper").arms[1].attach == {"layers": "conv"}
    assert study("paper", {"layers": "all"}).arms[1].attach == {"layers": "all"}
    assert study("paper", {"at": "update"}).arms[1].attach == {"layers": "conv", "at": "update"}
    assert settings("table1", momentum="paper")["optimizer"]["dampening"] == 0.9
    released = recipes.get("table2").study("paper", {"adamw": "released"}).cells[4].arms
    assert released[0].settings is None
    assert released[1].settings["optimizer"]["name"] == "Adam"
    assert settings("table5", validation="released")["eval_drop_last"] is True
    fine = settings("table7")
    assert (fine["optimizer"]["lr"], fine["optimizer"]["head_lr"], fine["batch_size"]) == (0.01, 0.1, 256)
    fine = settings("table7", training="released")
    assert (fine["optimizer"]["lr"], fine["optimizer"].get("head_lr"), fine["batch_size"]) == (0.1, None, 128)
    assert settings("table7")["data"]["augment"] == "none"
    assert settings("table7", crop="random")["data"]["augment"] == "crop-flip"
    for name in ("fig4", "fig5", "table5", "table7", "table8", "table9"):
        assert "dampening" not in settings(name)["optimizer"]
        assert settings(name, momentum="paper")["optimizer"]["dampening"] == 0.9
    for name in ("table8", "table9"):
        assert settings(name)["clip"] == 35.0
        assert settings(name, clip="none")["clip"] is None
        assert settings(name, images="8")["batch_size"] == 8
    released = settings("table7", crop="released")
    assert (released["data"]["augment"], released["data"]["square"]) == ("centre-crop-flip", False)
    assert released["eval_drop_last"] is True
    assert "eval_drop_last" not in fine
    for name in ("training", "crop"):  # the released pipeline is spread over two switches
        description = recipes.get("table7").switches[name].description
        assert "needs both training=released and crop=released" in description
    assert settings("table8")["model"]["norm"] == "fixed statistics"
    assert "norm" not in settings("table8", bn="frozen")["model"]
    r101gn = next(c for c in recipes.get("table9").study("paper").cells if c.name == "R101GN")
    assert (r101gn.settings["model"]["norm"], r101gn.settings["model"]["normalize"]) == ("gn", "bgr")
    wrong_axis = recipes.get("table9").study("paper", {"deconvolution": "released"}).arms[1].attach
    assert wrong_axis["overrides"] == {"roi_heads.mask_predictor.conv5_mask.weight": "rows"}
    assert "deconvolution" not in recipes.get("table8").switches
    for name in ("table8", "table9"):
        assert "model zoo" in " ".join(recipes.get(name).notes)
    assert (
        "presumably so in the paper's numbers" in recipes.get("table9").switches["deconvolution"].description
    )
    notes = " ".join(recipes.get("table2").study("paper", {"adamw": "released"}).notes)
    assert "adamw=released" in notes


def test_cells_of_table_9_that_equal_the_model_zoo_are_named():
    """Box and mask AP of Mask R-CNN with FPN, 1x, in the model zoo of MMDetection 1 (PyTorch style)."""
    zoo = {"R50": (37.3, 34.2), "R101": (39.4, 35.9), "X101-32x4d": (41.1, 37.1), "X101-64x4d": (42.1, 38.0)}
    printed = {(c.row, c.column): c.mean for c in paper_claims.claims() if c.table == 9}
    note = next(note for note in recipes.get("table9").notes if "model zoo" in note)
    named = note.partition(" in Table 9")[0].replace(" and ", ", ").split("of ")[-1].split(", ")
    equal = [
        name
        for name, pair in zoo.items()
        if pair == tuple(printed["w/o GC", f"{name} {metric}"] for metric in ("APb", "APm"))
    ]
    assert named == equal


def test_the_released_pipeline_of_table_7_is_built(tmp_path):
    make_sets.class_folders(tmp_path)
    folder = {"set": "folder", "path": str(tmp_path)}
    for crop, drops in (("centre", False), ("released", True)):
        chosen = settings("table7", crop=crop)
        made = recipes.get("table7").build({**chosen, "data": {**chosen["data"], **folder}}, None)
        assert made.eval_drop_last is drops
        steps = [type(step).__name__ for step in made.train_data.transform.transforms]
        assert ("RandomHorizontalFlip" in steps) is drops
        assert "CenterCrop" in steps


def test_released_adamw_arm_is_adam(data):
    study = recipes.get("table2").study("smoke", {"adamw": "released"})
    if find("cifar100", data) is None:
        pytest.skip("cifar100 is not under GRADCENT_DATA")
    made = {t.config.arm.name: t.make() for t in tasks_of(study, data) if t.config.cell == "AdamW"}
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    assert type(made["off"].optimizer(parameter)) is torch.optim.AdamW
    assert type(made["on"].optimizer(parameter)) is torch.optim.Adam


def test_fine_tuning_gives_the_head_its_own_rate(data):
    from gradcent_lab.experiment import optimizers

    spec = {"name": "SGDM", "lr": 0.01, "head_lr": 0.1, "weight_decay": 1e-4}
    model = models.make({"name": "R8", "width": 8}, 10)
    optimizer = optimizers.optimizer(spec)(optimizers.groups(spec)(model))
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(model.fc.weight)] == rates[id(model.fc.bias)] == 0.1
    assert rates[id(model.conv1.weight)] == 0.01
    assert len(rates) == len(list(model.parameters()))


def test_sgdw_is_sgd_when_nothing_decays():
    from gradcent_lab.experiment.optimizers import SGDW

    torch.manual_seed(0)
    start = torch.randn(5, 3, dtype=torch.float64)
    results = []
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
        lambda p: SGDW(p, lr=0.1, momentum=0.9, dampening=0.5),
    ):
        w = torch.nn.Parameter(start.clone())
        optimizer = make([w])
        for step in range(4):
            optimizer.zero_grad()
            (w.square().sum() * (step + 1)).backward()
            optimizer.step()
        results.append(w.detach())
    assert torch.allclose(*results)
    w = torch.nn.Parameter(start.clone())
    optimizer = SGDW([w], lr=0.1, momentum=0.9, weight_decay=0.01)
    w.grad = torch.zeros_like(w)
    for _ in range(3):
        optimizer.step()
    assert torch.allclose(w.detach(), start * (1 - 0.1 * 0.01) ** 3)


def test_wrong_names_are_named():
    for name, words in {
        "tabel1": "did you mean table1",
        "zzz": "gradcent list",
    }.items():
        with pytest.raises(UserError, match=words):
            recipes.get(name)
    with pytest.raises(UserError, match="no scale 'huge': choose one of paper, small, mini, smoke"):
        recipes.get("table1").study("huge")
    with pytest.raises(UserError, match="no switch 'x'; it has layers"):
        recipes.get("table1").study("smoke", {"x": "1"})
    with pytest.raises(UserError, match="takes conv or all, not 'fc'"):
        recipes.get("table1").study("smoke", {"layers": "fc"})


def test_weight_decay_changes_the_weights_of_table_3_at_mini():
    """Σ lr·λ/(1 − β) over the steps, by hand: 312 steps of 32 images per epoch, the rate a tenth after each drop.

    Decay alone multiplies the weights by exp(−Σ). Below about 0.1 none of the decays of the table does anything.
    """
    study = recipes.get("table3").study("mini")
    sums = {}
    for cell in study.cells:
        chosen = cell.settings
        steps = chosen["data"]["train"] // chosen["batch_size"]
        rate, total = chosen["optimizer"]["lr"], 0.0
        for epoch in range(chosen["epochs"]):
            dropped = sum(epoch >= drop for drop in chosen["schedule"]["milestones"])
            total += steps * rate * 0.1**dropped * chosen["optimizer"]["weight_decay"] / (1 - 0.9)
        sums[cell.name] = total
    assert sums["5e-4"] >= 0.5
    assert sums["0"] == 0.0
    for words in ("batch 32", "6 epochs of 312 steps", "divided by 10 after epochs 4 and 5"):
        assert words in study.scale.description
    assert (steps, chosen["epochs"], chosen["schedule"]["milestones"]) == (312, 6, [4, 5])


@pytest.mark.parametrize("scale", ["paper", "mini"])
def test_a_cell_that_several_tables_show_is_run_once(scale):
    """Table 2's SGDM is Table 3's 5e-4 and Table 4's SGDM 0.1; its Adam is Table 4's Adam 0.001."""
    runs = {}
    for name in ("table2", "table3", "table4"):
        for task in tasks_of(recipes.get(name).study(scale), None):
            runs.setdefault(task.config.run_id, []).append((name, task.config.cell))
    several = {tuple(tables) for tables in runs.values() if len(tables) > 1}
    assert several == {
        (("table2", "SGDM"), ("table3", "SGDM"), ("table4", "SGDM")),
        (("table2", "Adam"), ("table4", "Adam")),
    }
    assert len(runs) == {"paper": 320 - 60, "mini": 160 - 30}[scale]


def test_runs_of_a_shared_cell_appear_in_each_table_and_count_once(tmp_path):
    from synthetic_records import record

    from gradcent_lab.report.html import render
    from gradcent_lab.report.sections import sections

    runs = []
    for name, cell in (("table2", "SGDM"), ("table3", "1e-4")):
        study = recipes.get(name).study("small")
        for task in tasks_of(study, None):
            config = task.config
            if (config.study, config.cell) == (name, cell) and not any(
                r.path.name == config.run_id for r in runs
            ):
                made = record(name, cell, config.arm.name, config.seed, 40.0 + config.seed + config.arm.on)
                path = tmp_path / name / config.run_id
                runs.append(
                    dataclasses.replace(made, config=config.as_dict(), path=path, recipe=config.recipe)
                )
    both = sections(runs, recipes.all_recipes())
    shown = {section.name: {f.cell for f in section.findings if f.comparison} for section in both}
    assert shown == {"table2": {"SGDM"}, "table3": {"1e-4", "5e-4"}}
    notes = {section.name: " ".join(section.notes) for section in both}
    assert "5e-4: the same runs as SGDM of table2, counted once" in notes["table3"]
    assert "2 comparisons" in render(both, title="t", kicker="k")
