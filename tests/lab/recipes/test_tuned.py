"""Studies with tuned arms: the grid, the choice on held-out images, the comparison on other seeds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import toy

from gradcent_lab.analysis.cost import count_runs
from gradcent_lab.data.held_out import hold_out
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, Arm
from gradcent_lab.experiment.study import Cell, Scale, Study, Tuning, tasks_of
from gradcent_lab.recipes import tuned
from gradcent_lab.run.scheduler import run_tasks
from gradcent_lab.store import records as store

ALL, HIDDEN = Arm("all", {"layers": "all"}), Arm("hidden", {"layers": "hidden"})
RATES = (1e-6, 0.05)  # the first learns nothing


def build(settings, data):
    import torch

    experiment = replace(toy.experiment(), epochs=2)
    lr = settings["optimizer"]["lr"]
    experiment = replace(
        experiment, optimizer=partial(torch.optim.SGD, lr=lr, momentum=0.9), schedule=None, settings=settings
    )
    return hold_out(experiment, settings["held_out"]) if "held_out" in settings else experiment


def study():
    tuning = Tuning({"lr": RATES}, seeds=(10_000, 10_001), follow={"hidden": "all"})
    scale = Scale("mini", "two classes", tuning=tuning)
    cell = Cell("net", {"optimizer": {"lr": 1.0}, "epochs": 2, "batch_size": 16})
    return Study("toy", scale, (cell,), (OFF, ALL, HIDDEN), (0, 1), build)


def test_the_grid_gives_all_tuned_arms_the_same_budget_and_other_seeds():
    grid = tasks_of(tuned.tuning_study(study()), None)
    assert len(grid) == len(RATES) * 2 * 2
    assert {task.config.study for task in grid} == {"toy-tuning"}
    assert {task.config.arm.name for task in grid} == {"off", "all"}
    assert {task.config.seed for task in grid} == {10_000, 10_001}
    assert all(task.config.settings["held_out"] == 0.2 for task in grid)
    points = [(t.config.arm.name, t.config.seed, t.config.settings["optimizer"]["lr"]) for t in grid]
    assert len(set(points)) == len(points)


def test_a_tuned_study_chooses_by_held_out_results_and_compares_on_fresh_seeds(tmp_path):
    parts = []

    def run(part, tasks):
        parts.append((part.name, len(tasks)))
        run_tasks(tasks, tmp_path)

    tuned.run_tuned(study(), tmp_path, None, run)
    assert parts == [("toy-tuning", 8), ("toy", 2 * 2 + 2)]
    chosen = tuned.choose(study(), store.load(tmp_path, "toy-tuning"))["net"]
    means = {(r.arm, r.config["settings"]["optimizer"]["lr"]): [] for r in store.load(tmp_path, "toy-tuning")}
    for record in store.load(tmp_path, "toy-tuning"):
        means[record.arm, record.config["settings"]["optimizer"]["lr"]].append(record.last)
    for arm in chosen:  # recomputed from the stored runs
        best = max(RATES, key=lambda rate, arm=arm: sum(means[arm.arm, rate]))
        assert dict(arm.best.values)["lr"] == best
    final = store.load(tmp_path, "toy")
    assert {record.seed for record in final} == {0, 1}
    best = {arm.arm: dict(arm.best.values)["lr"] for arm in chosen}
    for record in final:
        expected = best["all" if record.arm == "hidden" else record.arm]
        assert record.config["settings"]["optimizer"]["lr"] == expected
        assert "held_out" not in record.config["settings"]


def test_a_study_in_which_no_arm_follows_compares_the_tuned_arms_only(tmp_path):
    scale = Scale("mini", "two classes", tuning=Tuning({"lr": RATES}, seeds=(10_000,)))
    plain = replace(study(), scale=scale, arms=(OFF, ALL))
    run_tasks(tasks_of(tuned.tuning_study(plain), None), tmp_path)
    tasks = tuned.comparison_tasks(plain, tuned.choose(plain, store.load(tmp_path, "toy-tuning")), None)
    assert [(t.config.seed, t.config.arm.name) for t in tasks] == [
        (seed, arm) for seed in (0, 1) for arm in ("off", "all")
    ]
    assert all(t.config.arm.settings["optimizer"]["lr"] in RATES for t in tasks)


def test_the_comparison_waits_for_the_whole_grid(tmp_path):
    run_tasks(tasks_of(tuned.tuning_study(study()), None)[:3], tmp_path)
    with pytest.raises(UserError, match="5 of 8 tuning runs are not finished"):
        tuned.choose(study(), store.load(tmp_path, "toy-tuning"))


def test_a_cell_with_a_grid_of_its_own_is_tuned_on_that(tmp_path):
    other = replace(study().cells[0], name="other", grid={"lr": (0.01, 0.02, 0.04)})
    both = replace(study(), cells=(*study().cells, other), arms=(OFF, ALL))
    grid = tasks_of(tuned.tuning_study(both), None)
    rates = {}
    for task in grid:
        rates.setdefault(task.config.cell.split(",")[0], set()).add(task.config.settings["optimizer"]["lr"])
    assert rates == {"net": set(RATES), "other": {0.01, 0.02, 0.04}}
    assert count_runs(both) == 2 * 2 * (2 + 3) + 2 * 2 * 2  # arms × seeds × points, then cells × arms × seeds
    run_tasks(grid, tmp_path)
    chosen = tuned.choose(both, store.load(tmp_path, "toy-tuning"))
    assert {dict(arm.best.values)["lr"] for arm in chosen["other"]} <= {0.01, 0.02, 0.04}
    assert {dict(arm.best.values)["lr"] for arm in chosen["net"]} <= set(RATES)


def test_values_beyond_the_grid_run_for_every_tuned_arm_and_choose_nothing(tmp_path):
    tuning = replace(study().scale.tuning, grid={"lr": RATES[:1]}, beyond={"lr": RATES[1:]})
    wider = replace(study(), scale=replace(study().scale, tuning=tuning))
    assert tuned.beyond_study(study()).cells == ()
    parts = []

    def run(part, tasks):
        parts.append([(t.config.arm.name, t.config.settings["optimizer"]["lr"]) for t in tasks])
        run_tasks(tasks, tmp_path)

    tuned.run_tuned(wider, tmp_path, None, run)
    assert sorted(parts[0]) == sorted(
        (arm, rate) for arm in ("off", "all") for rate in RATES for _ in range(2)
    )
    by_rate = {rate: [] for rate in RATES}
    for record in store.load(tmp_path, "toy-tuning"):
        by_rate[record.config["settings"]["optimizer"]["lr"]].append(record.last)
    assert min(by_rate[RATES[1]]) > max(by_rate[RATES[0]])  # it would have been chosen
    assert {rate for _, rate in parts[1]} == {RATES[0]}
    assert count_runs(wider) == len(parts[0]) + len(parts[1])


def test_nothing_to_tune_is_an_error():
    plain = replace(study(), scale=Scale("mini", "two classes"))
    with pytest.raises(UserError, match="tunes nothing at scale mini"):
        tuned.tuning_study(plain)


def test_a_cell_has_values_beyond_its_own_grid():
    """Of two cells only the one that names values beyond its grid runs them, with every tuned arm and seed."""
    plain = study()
    further = replace(plain.cells[0], name="other", grid={"lr": (0.1,)}, beyond={"lr": (0.5,)})
    both = replace(plain, cells=(plain.cells[0], further))
    tasks = tasks_of(tuned.beyond_study(both), None)
    assert {task.config.cell for task in tasks} == {"other, lr 0.5"}
    assert sorted((t.config.arm.name, t.config.seed) for t in tasks) == [
        (arm, seed) for arm in ("all", "off") for seed in (10_000, 10_001)
    ]
    assert all(task.config.settings["optimizer"]["lr"] == 0.5 for task in tasks)
