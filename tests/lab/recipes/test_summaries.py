"""The tables that test the captions of figures 3, 4 and 5, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from synthetic_records import record

from gradcent_lab.recipes.presentation import summaries


def test_figure_3_says_how_many_means_are_below_the_captions_bound():
    bound = math.exp(-7)
    few = replace(
        record(cell="Kaiming"), curves=[{"abs_means": [0.5 * bound, 2 * bound]}, {"abs_means": [1.0]}]
    )
    most = replace(record(cell="pretrained"), curves=[{"abs_means": [0.1 * bound, 0.2 * bound, 1.0]}])
    (table,) = summaries.initial_means([few, most])
    assert [row[3:] for row in table.rows] == [("33 %", "does not hold"), ("67 %", "holds")]
    assert table.rows[0][1] == "3"


def iterations(tmp_path, name, rows):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "iterations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_figure_4_says_in_how_many_iterations_the_gradient_is_smaller(tmp_path):
    keys = ("conv_norm", "conv_max", "fc_norm", "fc_max")
    off = [{k: 2.0 for k in keys} | {f"{k}_centralized": 1.0 for k in keys} for _ in range(4)]
    on = [{k: 9.0 for k in keys} | {f"{k}_centralized": v for k in keys} for v in (0.5, 1.0, 3.0, 0.5)]
    runs = [
        replace(record(arm="off"), path=iterations(tmp_path, "off", off)),
        replace(record(arm="on"), path=iterations(tmp_path, "on", on)),
    ]
    (table,) = summaries.gradient_history(runs)
    assert [row[1:] for row in table.rows] == [("0.38", "75 %", "0.50")] * 4
    assert summaries.gradient_history(runs[:1]) == []


def with_loss(run, loss):
    return replace(run, curves=[*run.curves[:-1], {**run.curves[-1], "train_loss": loss}])


def test_figure_5_compares_the_four_combinations_seed_by_seed():
    runs = []
    losses = {
        "BN": ((1.0, 0.8), (1.0, 1.1)),
        "BN+WS": ((0.9, 0.7), (0.8, 0.6)),
    }  # without and with GC, by seed
    for cell, off, on in (("BN", 50.0, 52.0), ("BN+WS", 55.0, 54.0)):
        for seed, (loss_off, loss_on) in enumerate(losses[cell]):
            runs += [
                with_loss(record("fig5", cell, "off", seed, off + seed), loss_off),
                with_loss(record("fig5", cell, "on", seed, on + seed), loss_on),
            ]
    (table,) = summaries.four_combinations(runs)
    assert [row[0] for row in table.rows] == ["BN", "BN+GC", "BN+WS", "BN+WS+GC"]
    assert table.rows[1][1:] == ("0.950 ± 0.212", "52.50 ± 0.71", "2")
    assert table.notes == (
        "BN: GC has the lower training loss in 1 and the higher test accuracy in 2 of 2 seeds; "
        "BN+WS: GC has the lower training loss in 2 and the higher test accuracy in 0 of 2 seeds",
    )
