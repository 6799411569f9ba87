"""The terminal: braille curves and the live display, with and without a terminal."""

import dataclasses
import io
import itertools
import re

import numpy as np
from rich.console import Console
from synthetic_records import study

from gradcent_lab.experiment.run_config import OFF, ON, RunConfig
from gradcent_lab.report.braille_plot import plot
from gradcent_lab.run.progress import Display


def heights(text, width=20, height=5):
    """The lowest dot row of every column, read back from the braille characters."""
    rows = text.plain.splitlines()[:height]
    columns = []
    for column in range(width):
        cells = [row[-width:][column] for row in rows]
        dots = [4 * r + d for r, c in enumerate(cells) if "⠀" <= c <= "⣿" for d in range(4) if _has(c, d)]
        columns.append(max(dots) if dots else None)
    return columns


def _has(character, row):
    bits = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
    return bool((ord(character) - 0x2800) & (bits[row][0] | bits[row][1]))


def test_a_rising_line_rises_from_the_bottom_to_the_top():
    text = plot({"a": list(range(10))}, width=20, height=5)
    found = heights(text)
    assert found[0] == 19
    assert found[-1] is not None
    assert found[-1] <= 2
    assert all(a >= b for a, b in itertools.pairwise(found))
    assert "epoch 10" in text.plain
    assert "━━ a" in text.plain


def test_flat_single_and_unfinished_curves_are_drawn():
    assert "━━ b" in plot({"a": [1.0] * 5, "b": [2.0, np.nan, 1.0]}, width=20, height=5).plain
    assert "epoch 1" in plot({"a": [3.0]}, width=20, height=4).plain
    assert plot({"a": [np.nan]}).plain == "nothing finite to draw"


def test_a_steep_beginning_can_be_left_out_of_the_range():
    values = [0.0, 50.0, 98.0, 98.5, 99.0, 99.0]
    assert plot({"a": values}, focus=0.34).plain.splitlines()[-4].split()[0] == "98"


def test_without_colours_the_second_line_is_broken():
    lines = {"a": [0.0] * 10, "b": [1.0] * 10}
    bottom, top = (
        plot(lines, width=20, height=5, colours=False).plain.splitlines()[row][-20:] for row in (4, 0)
    )
    assert " " not in bottom
    assert 5 < top.count(" ") < 15
    assert "━━ a   ╍╍ b" in plot(lines, colours=False).plain
    assert "━━ a   ━━ b" in plot(lines).plain


def tell(display, records):
    for run in records:
        config = RunConfig("s", run.cell, OFF if run.arm == "off" else ON, run.seed, "own", {"epochs": 2})
        display.run_started(config)
        display.epoch_done(config, {"epoch": 1, "train_loss": 0.5, "eval_metric": 97.0})
        display.run_finished(run)


def test_without_a_terminal_every_run_is_one_line():
    stream = io.StringIO()
    records = study(n=2)
    with Display(Console(file=stream, width=100), [OFF, ON], 4, "accuracy, %") as display:
        tell(display, records)
    lines = [line for line in stream.getvalue().splitlines() if line]
    assert len(lines) == 4
    assert lines[0].split()[:4] == ["1/4", "seed", "0", "without"]
    assert lines[3].startswith("    4/4  seed 1   with GC")
    assert f"accuracy {records[3].last:.4g}" in lines[3]


def test_a_run_is_told_in_its_own_metric():
    """Average precision, IoU and counts are not called accuracy."""
    stream = io.StringIO()
    run = dataclasses.replace(study(n=1)[0], metric_name="images", last=11788.0)
    with Display(Console(file=stream, width=100), [OFF, ON], 1, "accuracy, %") as display:
        display.run_finished(run)
    assert "images 11,788" in stream.getvalue()


def test_with_a_terminal_bars_and_the_standing_are_drawn():
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True)
    with Display(console, [OFF, ON], 4, "accuracy, %") as display:
        tell(display, study(n=2, gain=1.0))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "all runs" in text
    assert "so far: 2 pairs, mean difference +" in text


def test_reused_runs_are_counted():
    stream = io.StringIO()
    with Display(Console(file=stream, width=100), [OFF, ON], 2, "accuracy") as display:
        for run in study(n=1):
            display.run_skipped(run)
    assert display.reused == 2
    assert stream.getvalue().count("(finished already)") == 2
