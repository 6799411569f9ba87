"""The migration of runs that an older version stored without their switches: the switches are found again."""

import importlib.util
from pathlib import Path

import pytest

from gradcent_lab import recipes
from gradcent_lab.experiment.study import tasks_of
from gradcent_lab.store import records

ROOT = Path(__file__).resolve().parents[3]
RESULT = {
    "best": 1.0,
    "best_epoch": 1,
    "last": 1.0,
    "metric_name": "accuracy, %",
    "higher_is_better": True,
    "initial_weights": "",
    "seconds": 1.0,
}


@pytest.fixture(scope="module")
def migration():
    spec = importlib.util.spec_from_file_location("record_recipes", ROOT / "tools" / "record_recipes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def store_as_before(root, task):
    """Store a run the way older versions did, without recipe.json."""
    from dataclasses import replace

    config = replace(task.config, recipe=None)
    folder = records.folder(root, config)
    records.begin(folder, config)
    records.finish(folder, RESULT, [{"epoch": 1, "eval_metric": 1.0}])
    assert records.load_run(folder).recipe is None


def test_switches_of_older_runs_are_found_again(migration, tmp_path):
    expected = {}
    for chosen in ({}, {"layers": "all"}, {"momentum": "paper", "at": "update"}):
        study = recipes.get("table1").study("smoke", chosen)
        task = tasks_of(study, None)[1]  # the arm with GC, which every switch changes
        store_as_before(tmp_path, task)
        expected[task.config.run_id] = dict(study.switches)
    assert migration.record_folder(tmp_path) == 3
    runs = records.load(tmp_path)
    assert {run.path.name: dict(run.recipe.switches) for run in runs} == expected
    assert all(run.recipe.scale == recipes.get("table1").scale("smoke").description for run in runs)
    assert migration.record_folder(tmp_path) == 0, "a second time there is nothing to do"


def test_the_committed_runs_have_their_recipe():
    runs = records.load(ROOT / "results" / "studies")
    assert len(runs) >= 15
    assert all(run.recipe is not None and run.recipe.recipe == run.study for run in runs)
