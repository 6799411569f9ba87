"""The calibration of the forecast: its protocol, and its analysis on made-up rows whose answer is known."""

import math
import random
import subprocess
import sys

import pytest
import torch
from scipy import stats

from gradcent_lab.forecasting.calibration import outcomes as analysis
from gradcent_lab.forecasting.calibration import study, training
from gradcent_lab.forecasting.calibration.tasks import GRIDS, all_tasks


def compare_rows(changes, arm="all", **fields):
    rows = []
    for seed, change in enumerate(changes):
        for name, loss in (("off", 2.0), (arm, None if change is None else 2.0 * (1 + change))):
            rows.append(
                {
                    "phase": "compare",
                    "arm": name,
                    "seed": seed,
                    "lr": 0.1,
                    "train_loss": loss,
                    "test_loss": loss,
                }
                | {"diverged": loss is None, **fields}
            )
    return rows


def test_there_are_enough_tasks_of_every_kind_and_names_are_unique():
    tasks = all_tasks()
    assert len(tasks) >= 60
    assert len({task.name for task in tasks}) == len(tasks)
    assert sum(task.expected == "harm" for task in tasks) >= 8
    assert sum(task.expected == "nothing" for task in tasks) >= 12
    assert {task.optimizer for task in tasks} == set(GRIDS)


def test_listing_the_tasks_does_not_import_torch():
    code = (
        "import sys; from gradcent_lab.recipes import get; "
        "recipe = get('forecast'); assert len(recipe.cells(recipe.scales[0], {})) > 60; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_task_builds_and_computes_a_finite_loss():
    for task in all_tasks():
        split = task.load_data()
        output = task.build_model()(split.train_inputs[:4])
        assert torch.isfinite(training.loss_of(split)(output, split.train_targets[:4])), task.name


def test_every_arm_is_tuned_over_the_same_rates_and_no_arm_ends_at_an_end_of_them(monkeypatch):
    """The best rate of the arm without GC is made 3, beyond the grid of SGD; the others prefer 0.1."""

    def train(task, split, arm, lr, seed):
        best = 3.0 if arm == "off" else 0.1
        loss = 1 + abs(math.log10(lr / best))
        return training.Run(task.name, arm, lr, seed, loss, loss, loss, None, False)

    monkeypatch.setattr(training, "train", train)
    rows = study.tune(all_tasks()[0], None)
    tried = {arm: sorted({row["lr"] for row in rows if row["arm"] == arm}) for arm in training.ARMS}
    assert tried["off"] == tried["all"] == tried["hidden"] == [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    assert study.best_lr(rows, "off") == 3.0
    assert study.best_lr(rows, "all") == 0.1
    assert {row["seed"] for row in rows} == set(study.TUNING_SEEDS)
    assert not {*study.TUNING_SEEDS, *study.FORECAST_SEEDS} & set(study.FRESH_SEEDS)


@pytest.mark.parametrize("arm", ["all", "hidden"])
def test_a_network_whose_every_input_is_centered_trains_the_same_with_gc(arm):
    task = next(task for task in all_tasks() if task.name == "mlp LN first, digits, SGD")
    split = task.load_data()
    off, on = (training.train(task, split, name, 0.01, 0) for name in ("off", arm))
    assert on.train_loss == pytest.approx(off.train_loss, rel=1e-3)


def test_arms_share_weights_and_batches():
    task = all_tasks()[0]
    split = task.load_data()
    first = [inputs.sum() for inputs, _ in training.batches(split, 64, 5, seed=3)]
    second = [inputs.sum() for inputs, _ in training.batches(split, 64, 5, seed=3)]
    assert first == second
    runs = [training.train(task, split, "off", 0.1, 3) for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_paired_change_is_the_geometric_mean_with_students_interval():
    changes = [0.1, 0.2, 0.3]
    result = analysis.paired_change(compare_rows(changes), "all", "train_loss")
    logs = [math.log1p(change) for change in changes]
    mean = sum(logs) / 3
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / 2)
    half = 4.302652729911275 * deviation / math.sqrt(3)  # Student's 97.5 % quantile for 2 degrees of freedom
    assert result.mean == pytest.approx(math.expm1(mean))
    assert result.low == pytest.approx(math.expm1(mean - half))
    assert result.high == pytest.approx(math.expm1(mean + half))
    assert (result.better, result.pairs) == (0, 3)


def test_a_diverged_arm_counts_as_slower():
    result = analysis.paired_change(compare_rows([-0.3, None, -0.2]), "all", "train_loss")
    assert result.diverged == 1
    assert result.slower
    assert not result.faster


def made_up(task, removed, change, explained=0.0):
    stable = analysis.Change(change, change - 0.01, change + 0.01, 8 * (change < 0), 8, 0)
    rates = {"off": 0.1, "all": 0.1, "hidden": 0.1}
    both = {"all": stable, "hidden": stable}
    return analysis.Outcome(task, removed, 0.0, explained, None, rates, both, both)


def test_a_perfect_forecast_passes_the_check_and_a_useless_one_does_not():
    tasks = all_tasks()
    perfect = [made_up(task, index / len(tasks), -index / len(tasks)) for index, task in enumerate(tasks)]
    facts = analysis.check(perfect)
    assert facts["rank_correlation_fresh"][0] == pytest.approx(-1)
    assert facts["false_promises"] == []
    reverse = [
        made_up(task, index / len(tasks), 0.2 - index / len(tasks))
        for index, task in enumerate(reversed(tasks))
    ]
    assert analysis.check(reverse)["harms"] > 0
    useless = [made_up(task, (37 * i % 72) / 72, (i % 5) / 5 - 0.5) for i, task in enumerate(tasks)]
    assert abs(analysis.check(useless)["rank_correlation_fresh"][0]) < 0.5


def test_the_rank_correlation_is_scipys():
    generator = random.Random(0)
    found = [made_up(task, generator.random(), generator.uniform(-0.5, 0.2)) for task in all_tasks()]
    found += [made_up(all_tasks()[0], 0.5, 0.1), made_up(all_tasks()[1], 0.5, 0.1)]  # ties
    pairs = [(entry.removed, entry.train["all"].mean) for entry in found]
    rho, low, high = analysis.rank_correlation(found, resamples=200)
    assert rho == pytest.approx(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
    assert low < rho < high
    assert math.isnan(analysis.rank_correlation(found, by="curvature")[0])  # nobody measured it


def test_the_threshold_separates_harm_on_the_first_half():
    tasks = all_tasks()
    found = [
        made_up(task, 0.2, 0.3 if i % 3 == 0 else -0.2, 0.9 if i % 3 == 0 else 0.1)
        for i, task in enumerate(tasks)
    ]
    facts = analysis.check(found)
    assert 0.1 < facts["warning_threshold"] < 0.9
    assert facts["missed_harms"] == []
    assert facts["false_warnings"] == []


def test_families_are_never_divided():
    found = [made_up(task, 0.1, 0.0) for task in all_tasks()]
    first, second = analysis.halves(found)
    assert not {entry.task.family for entry in first} & {entry.task.family for entry in second}
    assert min(len(first), len(second)) > 20
