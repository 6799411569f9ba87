"""What makes two runs a pair: the same initial weights, the same batches, the same number of processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toy

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.run.scheduler import run_pairs
from gradcent_lab.store.pairs import check_pairs


def test_arms_that_differ_in_more_than_the_arm_are_no_pair(tmp_path):
    off, on = run_pairs(replace(toy.experiment(), epochs=1), [OFF, ON], [0], tmp_path)
    check_pairs([off, on])
    two = replace(on, environment={**on.environment, "processes": 2})
    with pytest.raises(UserError, match="ran in 1 and 2 processes, so they are no pair"):
        check_pairs([off, two])
    check_pairs([replace(off, environment=two.environment), two])
    without = {key: value for key, value in off.environment.items() if key != "processes"}
    check_pairs([replace(off, environment=without), on])  # runs of earlier versions had one process
    with pytest.raises(UserError, match="started from different weights"):
        check_pairs([off, replace(on, initial_weights="other")])
    curves = [{**line, "batches": "other"} for line in on.curves]
    with pytest.raises(UserError, match="saw different batches in epoch 1"):
        check_pairs([off, replace(on, curves=curves)])
    check_pairs([off, replace(on, curves=curves, seed=1)])  # another seed
    longer = [*on.curves, {"epoch": 2}]
    check_pairs([off, replace(on, curves=longer)])  # an arm that diverged has fewer epochs
    without = [{key: value for key, value in line.items() if key != "batches"} for line in on.curves]
    for arms in ([off, replace(on, curves=without)], [replace(off, curves=without), on]):
        check_pairs(arms)  # runs of earlier versions did not record their batches
