"""The overhead recipe: what is timed, and what its table says."""

import statistics
from dataclasses import replace

import pytest
import torch
from synthetic_records import record

import gradcent
from gradcent.kernels import native
from gradcent_lab import recipes
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.study import tasks_of
from gradcent_lab.recipes.builders import overhead
from gradcent_lab.recipes.overhead import KERNELS
from gradcent_lab.recipes.presentation import tables

SETTINGS = {"model": {"name": "R8", "width": 4}, "batch_size": 2, "steps": 4, "kernels": KERNELS}


def times(prefix, seconds):
    return {f"{prefix}seconds": 10 * seconds, f"{prefix}optimizer_seconds": seconds}


def run(arm, **networks):
    rows = [
        {
            "step": step,
            **{key: value for name, s in networks.items() for key, value in times(name, s).items()},
        }
        for step in range(5)
    ]
    return replace(record("overhead", "R18", arm=arm, attach={} if arm == "on" else None), curves=rows)


def test_overhead_is_the_ratio_to_the_network_without_gc_in_the_same_run():
    """A machine that slows down in the second run changes all times of it, not their ratios."""
    records = [
        run("off", **{"": 1.0, "default_": 2.0, "reference_": 1.0}),
        run("on", **{"": 3.3, "default_": 2.7, "reference_": 3.0}),
    ]
    (table,) = tables.overhead(records)
    assert [row[1:] for row in table.rows] == [
        (
            "with GC, torch's fused step",
            "+10.00 % (+10.00 to +10.00)",
            "+10.00 % (+10.00 to +10.00)",
            "10.0 %",
            "1",
        ),
        (
            "with GC, gradcent's kernels",
            "−10.00 % (−10.00 to −10.00)",
            "−10.00 % (−10.00 to −10.00)",
            "10.0 %",
            "1",
        ),
        ("without GC (noise)", "+0.00 % (+0.00 to +0.00)", "+0.00 % (+0.00 to +0.00)", "10.0 %", "1"),
    ]


@pytest.mark.parametrize("arm", [OFF, ON])
def test_overhead_times_three_networks_in_turn(arm, monkeypatch):
    """All networks of a run take the same number of steps, each first and last, and only those of the arm have GC."""
    attached, order, step = [], [], overhead._timed_step

    def remember(model, optimizer, images, labels):
        order.append(id(model))
        return step(model, optimizer, images, labels)

    monkeypatch.setattr(gradcent, "attach", lambda optimizer, model, **options: attached.append(options))
    monkeypatch.setattr(overhead, "_timed_step", remember)
    seconds, rows = overhead.measure(SETTINGS, 0, arm)
    kernels = [{"layers": "all", "kernel": "foreach"}, {"layers": "all", "kernel": "auto"}]
    assert attached == (kernels if arm.on else [])
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for prefix in ("", "default_", "reference_"):
        assert all(row[f"{prefix}seconds"] > row[f"{prefix}optimizer_seconds"] > 0 for row in rows)
    assert seconds == statistics.median(row["seconds"] for row in rows) * 25_000
    rounds = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert len(set(order)) == 3
    assert len(set(rounds[:6])) == 6  # all six orders


def test_which_kernel_steps_each_network(monkeypatch):
    """GC is timed against torch's fused kernel on that kernel, and beside it on gradcent's."""
    if not native.available():
        pytest.skip(native.reason())
    counts, fused = {}, torch._fused_sgd_
    calls = {"torch": 0, "native": 0}

    def count(name, function):
        def counted(*args, **options):
            calls[name] += 1
            return function(*args, **options)

        return counted

    monkeypatch.setattr(torch, "_fused_sgd_", count("torch", fused))
    monkeypatch.setattr(native, "step_lists", count("native", native.step_lists))  # the first step
    monkeypatch.setattr(native, "step_group", count("native", native.step_group))
    step = overhead._timed_step

    def per_network(model, optimizer, images, labels):
        before = dict(calls)
        times = step(model, optimizer, images, labels)
        seen = counts.setdefault(id(model), {"torch": 0, "native": 0})
        for name in calls:
            seen[name] += calls[name] > before[name]
        return times

    monkeypatch.setattr(overhead, "_timed_step", per_network)
    steps = SETTINGS["steps"] + overhead.WARM_UP
    overhead.measure(SETTINGS, 0, ON)
    torchs, gradcents = {"torch": steps, "native": 0}, {"torch": 0, "native": steps}
    assert sorted(counts.values(), key=str) == sorted([torchs, gradcents, torchs], key=str)
    order = list(counts.values())  # the first order is that of the settings, the reference last
    assert order == [torchs, gradcents, torchs]
    counts.clear()
    overhead.measure(SETTINGS, 0, OFF)
    assert list(counts.values()) == [torchs, torchs, torchs]


def test_small_has_five_pairs_whose_settings_name_the_kernels():
    tasks = tasks_of(recipes.get("overhead").study("small"), None)
    assert len(tasks) == 10
    assert tasks[0].config.settings["kernels"] == {"": "foreach", "default_": "auto"}
