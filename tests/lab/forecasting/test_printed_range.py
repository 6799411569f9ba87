"""The printed range, recomputed from results/ by code that shares nothing with the analysis or the library."""

import json
import math
import re
from collections import defaultdict
from pathlib import Path

import pytest

from gradcent import calibration

RESULTS = Path(__file__).resolve().parents[3] / "results" / "studies" / "forecast"
STUDENT_7 = 2.364624251592785  # 97.5 % quantile of Student's distribution with 7 degrees of freedom: 8 pairs


def read_tasks():
    """Return the stored rows of every task, by its name."""
    return {
        json.loads((folder / "config.json").read_text())["cell"]: [
            json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in sorted(RESULTS.iterdir())
        if (folder / "result.json").exists()
    }


def change_with_interval(rows, arm, loss):
    """Return (change, low, high, more runs diverged than without GC) over the fresh seeds."""
    losses, diverged = defaultdict(dict), defaultdict(int)
    for row in rows:
        if row["phase"] == "compare":
            diverged[row["arm"]] += row["diverged"]
            if not row["diverged"]:
                losses[row["arm"]][row["seed"]] = row[loss]
    logs = [
        math.log(max(losses[arm][seed], 1e-12) / max(losses["off"][seed], 1e-12))  # a test loss can underflow
        for seed in losses["off"]
        if seed in losses[arm]
    ]
    if len(logs) != 8:
        raise ValueError("a task with diverged runs needs other quantiles")
    mean = sum(logs) / 8
    error = math.sqrt(sum((x - mean) ** 2 for x in logs) / 7 / 8)
    low, high = (math.exp(mean + sign * STUDENT_7 * error) - 1 for sign in (-1, 1))
    return math.exp(mean) - 1, low, high, diverged[arm] > diverged["off"]


def describe(rows):
    removed = [row["removed"] for row in rows if row["phase"] == "forecast"]
    change, low, high, worse = change_with_interval(rows, "all", "train_loss")
    harm = {}
    for arm in ("all", "hidden"):
        parts = [change_with_interval(rows, arm, loss) for loss in ("train_loss", "test_loss")]
        harm[arm] = any(diverged or (middle > 0.05 and bottom > 0) for middle, bottom, _, diverged in parts)
    return {
        "explained": next(row["explained"] for row in rows if row["phase"] == "forecast"),
        "harmed": harm["all"],
        "harmed_hidden": harm["hidden"],
        "removed": sum(removed) / len(removed),
        "change": change,
        "faster": change < -0.05 and high < 0,
        "slower": worse or (change > 0.05 and low > 0),
    }


@pytest.fixture(scope="module")
def tasks():
    return {name: describe(rows) for name, rows in read_tasks().items()}


def test_every_stored_task_is_a_point_of_the_library(tasks):
    assert len(tasks) >= 60
    assert {point.name for point in calibration.POINTS} == set(tasks)


@pytest.mark.parametrize(
    ("share", "low", "high"), [(0.01, 0, 5), (0.1, 5, 20), (0.3, 20, 40), (0.7, 40, 100)]
)
def test_the_printed_range_is_that_of_the_stored_runs(tasks, share, low, high):
    chosen = [
        task
        for task in tasks.values()
        if low / 100 <= task["removed"] and (task["removed"] < high / 100 or high == 100)
    ]
    faster, slower = (sum(task[name] for task in chosen) for name in ("faster", "slower"))
    printed = calibration.sentence(share)
    assert printed.startswith(f"GC removes {round(100 * share)} % of the gradient here.")
    pattern = (
        r"Of (\d+) calibration tasks between (\d+) % and (\d+) %, (\d+) trained faster with GC, (\d+) about equally, "
        r"(\d+) slower \(change of the training loss ([+−]\d+) % to ([+−]\d+) %\)"
    )
    numbers = [int(text.replace("−", "-")) for text in re.search(pattern, printed).groups()]
    changes = [100 * task["change"] for task in chosen]
    assert numbers[:6] == [len(chosen), low, high, faster, len(chosen) - faster - slower, slower]
    assert numbers[6:] == [pytest.approx(min(changes), abs=0.51), pytest.approx(max(changes), abs=0.51)]


@pytest.mark.parametrize("explained", [0.1, 0.9])
def test_the_printed_hint_counts_the_stored_runs(tasks, explained):
    printed = calibration.sentence(0.3, explained)
    chosen = [
        task
        for task in tasks.values()
        if explained < 0.5 or (task["explained"] is not None and task["explained"] >= 0.5)
    ]
    pattern = r"Of (?:all|the) (\d+) tasks.*, GC in all layers harmed (\d+), GC in the hidden layers only harmed (\d+)"
    numbers = [int(text) for text in re.search(pattern, printed).groups()]
    assert numbers == [
        len(chosen),
        *(sum(task[key] for task in chosen) for key in ("harmed", "harmed_hidden")),
    ]
    assert ("explains 90 % of the target" in printed) == (explained == 0.9)
