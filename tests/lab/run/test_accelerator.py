"""accelerate's environment variables do not change numbers under the same run identifier."""

from __future__ import annotations

import pytest
import toy

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF
from gradcent_lab.run.scheduler import run_pairs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"),
        ("ACCELERATE_DYNAMO_BACKEND", "inductor"),
        ("ACCELERATE_DYNAMO_MODE", "max-autotune"),
        ("ACCELERATE_USE_DEEPSPEED", "true"),
    ],
)
def test_a_variable_that_changes_numbers_is_refused(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"{name}={value} would change results"):
        run_pairs(toy.experiment(), [OFF], [0], tmp_path)


def test_what_accelerate_launch_sets_changes_nothing(tmp_path, monkeypatch):
    (plain,) = run_pairs(toy.experiment(), [OFF], [0], tmp_path / "plain")
    for name, value in (
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1"),
        ("ACCELERATE_DYNAMO_BACKEND", "NO"),
        ("ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"),
        ("ACCELERATE_MIXED_PRECISION", "bf16"),
    ):
        monkeypatch.setenv(name, value)
    (launched,) = run_pairs(toy.experiment(), [OFF], [0], tmp_path / "launched")
    assert [line["train_loss"] for line in launched.curves] == [line["train_loss"] for line in plain.curves]


def test_variables_that_change_arithmetic_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    (record,) = run_pairs(toy.experiment(), [OFF], [0], tmp_path)
    assert record.environment["variables"]["NVIDIA_TF32_OVERRIDE"] == "0"
