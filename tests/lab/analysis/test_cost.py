"""What `gradcent list RECIPE` says a study costs, against published counts."""

import pytest

from gradcent_lab import recipes
from gradcent_lab.analysis import cost
from gradcent_lab.cli import main


@pytest.mark.parametrize(
    ("spec", "classes", "pixels", "multiplications"),
    [({"name": "resnet50"}, 1000, 224, 4.09e9), ({"name": "R18"}, 100, 32, 0.556e9)],
)
def test_arithmetic_is_the_published_count(spec, classes, pixels, multiplications):
    assert cost.forward(spec, classes, pixels) == pytest.approx(2 * multiplications, rel=0.02)


def test_runs_and_images_of_table_1():
    study = recipes.get("table1").study("paper")
    assert cost.count_runs(study) == 100
    assert cost.count_images(study) == 100 * 200 * 50_000


def test_pretrained_networks_and_other_tasks_need_no_weights():
    assert cost.count_operations(recipes.get("table7").study("paper")) > 1e18
    assert cost.count_operations(recipes.get("table8").study("paper")) is None


def test_the_runs_of_tuning_and_of_the_arms_that_follow_are_counted():
    """norms: 3 norms × (2 tuned arms × 3 rates × 2 seeds + 2 × 6 + 2 × 6); F: 6 arms × 8 seeds."""
    assert cost.count_runs(recipes.get("norms").study("mini")) == 3 * (2 * 3 * 2 + 2 * 6 + 2 * 6)
    assert cost.count_runs(recipes.get("cifar100-tuned").study("mini")) == 2 * 4 * 2 + 2 * 8 + 2 * 4
    assert cost.count_runs(recipes.get("controls").study("mini")) == 6 * 8
    tuned = recipes.get("norms").study("mini")
    assert cost.count_images(tuned) == 3 * 4 * (12 * 8_000 + 24 * 10_000)


@pytest.mark.parametrize(
    "name", [n for n in recipes.RECIPES if any(s.name == "mini" for s in recipes.get(n).scales)]
)
def test_every_mini_scale_has_five_pairs_or_draws_one_figure(name):
    study = recipes.get(name).study("mini")
    assert len(study.seeds) >= 5 or name == "fig4"
    assert not study.scale.is_paper


def test_the_estimate_is_within_a_factor_of_a_real_run(tmp_path):
    """The probed processor time of a small classifier against that of the lab's own training loop."""
    import time
    from dataclasses import replace

    import torch

    from gradcent_lab.experiment.run_config import OFF
    from gradcent_lab.experiment.study import Cell, Scale, Study
    from gradcent_lab.run.scheduler import run_study

    settings = {
        "name": "cost",
        "data": {"set": "digits", "size": 8},
        "model": {"name": "R8", "width": 32},
        "optimizer": {"name": "SGDM", "lr": 0.05, "weight_decay": 0.0},
        "schedule": {"milestones": [9]},
        "epochs": 3,
        "batch_size": 128,
    }

    def build(chosen, data):
        from gradcent_lab.recipes.builders import classification

        experiment = classification.build(chosen, data)
        return replace(experiment, forward=lambda model, x, _: model(x.expand(-1, 3, -1, -1)))

    study = Study("cost", Scale("own", "digits"), (Cell("R8", settings),), (OFF,), (0,), build)
    expected = cost.count_seconds(study)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    began = time.process_time()
    run_study(study, tmp_path)
    spent = time.process_time() - began
    torch.set_num_threads(threads)
    assert expected / 2 < spent < 2 * expected  # 1.5 for long runs; this one of seconds includes the start


def test_what_was_seen_here_comes_before_the_estimate(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gradcent_lab.analysis.training_speed.PROBE_SECONDS", 0.02)
    assert main(["list", "table3", "--root", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "TFLOP/s" in text
    assert "100 runs (1 cells shared with table2), 1,000,000,000 training images in total" in text
    assert "on two cores of this processor, one run on each (probed)" in text
    study = recipes.get("table3").study("small")
    assert cost.words(study, 1000.0).endswith("1.7 hours at the 1,000 images/s of the finished runs")
