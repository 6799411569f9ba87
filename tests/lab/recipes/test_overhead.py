"""The overhead recipe: what is timed, and what its table says."""

import statistics
from dataclasses import replace

import pytest
import torch
from synthetic_records import record

import gradcent
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.recipes.builders import overhead
from gradcent_lab.recipes.presentation import tables


def test_overhead_is_the_ratio_to_the_network_without_gc_in_the_same_run():
    """A machine that slows down in the second run changes both times of it, not their ratio."""
    records = []
    for arm, slower, added in (("off", 1.0, 1.0), ("on", 3.0, 1.1)):
        run = replace(
            record("overhead", "R18", arm=arm, attach={} if arm == "on" else None),
            curves=[
                {
                    "step": step,
                    "seconds": 10.0 * slower * added,
                    "optimizer_seconds": slower * added,
                    "reference_seconds": 10.0 * slower,
                    "reference_optimizer_seconds": slower,
                }
                for step in range(5)
            ],
        )
        records.append(run)
    (table,) = tables.overhead(records)
    assert [row[1:5] for row in table.rows] == [
        ("with GC", "+10.00 % (+10.00 to +10.00)", "+10.00 % (+10.00 to +10.00)", "10.0 %"),
        ("without GC (noise)", "+0.00 % (+0.00 to +0.00)", "+0.00 % (+0.00 to +0.00)", "10.0 %"),
    ]


@pytest.mark.parametrize("arm", [OFF, ON])
def test_overhead_times_two_networks_in_turn(arm):
    """Both networks of a run take the same number of steps, and only the arm's is centralized."""
    attached = []
    settings = {"model": {"name": "R8", "width": 8}, "batch_size": 4, "steps": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradcent, "attach", lambda optimizer, model, **options: attached.append(options))
        seconds, rows = overhead.measure(settings, 0, arm)
    assert attached == ([{"layers": "all"}] if arm.on else [])
    assert [row["step"] for row in rows] == [0, 1]
    assert all(row["seconds"] > row["optimizer_seconds"] > 0 for row in rows)
    assert all(row["reference_seconds"] > row["reference_optimizer_seconds"] > 0 for row in rows)
    assert seconds == statistics.median(row["seconds"] for row in rows) * 12_500


def test_all_networks_of_the_overhead_use_torchs_fused_step(monkeypatch):
    """Against torch's loop, the speed of gradcent's kernels would hide what GC adds."""
    made, init = [], torch.optim.SGD.__init__

    def remember(self, *args, **options):
        init(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(torch.optim.SGD, "__init__", remember)
    settings = {"model": {"name": "R8", "width": 4}, "batch_size": 2, "steps": 1}
    for arm in (OFF, ON):
        overhead.measure(settings, 0, arm)
    assert [optimizer.param_groups[0]["fused"] for optimizer in made] == [True] * 4  # two in each arm
