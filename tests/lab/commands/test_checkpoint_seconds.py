"""`--checkpoint-seconds`: its bounds, and that it reaches the runs of every command."""

from __future__ import annotations

import campaign_study
import pytest

from gradcent_lab import recipes
from gradcent_lab.cli import main
from gradcent_lab.run import checkpoint


@pytest.fixture
def writes(monkeypatch):
    """The studies whose runs wrote a checkpoint, once for each."""
    studies, save = [], checkpoint.save

    def counting(path, *args):
        studies.append(path.parents[1].name)
        save(path, *args)

    monkeypatch.setattr(checkpoint, "save", counting)
    monkeypatch.setattr(recipes, "RECIPES", dict(recipes.RECIPES))
    campaign_study.register_recipe()
    return studies


@pytest.mark.parametrize("command", [["run", "campaign"], ["compare", "campaign_study:experiment"]])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
def test_a_value_that_is_no_duration_is_refused(capsys, command, value):
    with pytest.raises(SystemExit) as stop:
        main([*command, f"--checkpoint-seconds={value}"])
    assert stop.value.code == 2
    assert f"--checkpoint-seconds: {value}: give a number of 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "expected"), [("0", 12), ("3600", 0)])
def test_run_writes_after_every_step_or_never(tmp_path, writes, value, expected):
    words = ["run", "campaign", "--scale", "smoke", "--seeds", "1", "--out", str(tmp_path)]
    assert main([*words, "--checkpoint-seconds", value]) == 0
    assert len(writes) == expected  # two arms, two epochs of two steps, and the end of each epoch


def test_tuning_uses_it_too(tmp_path, writes):
    words = [
        "compare",
        "campaign_study:experiment",
        "--seeds",
        "1",
        "--tune",
        "lr=0.01,0.1",
        "--tune-seeds",
        "1",
    ]
    assert main([*words, "--checkpoint-seconds", "0", "--out", str(tmp_path)]) == 0
    assert {"toy", "toy-tuning"} <= set(writes)
