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


def test_what_was_seen_here_comes_before_the_estimate(tmp_path, capsys):
    assert main(["list", "table3", "--root", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "TFLOP/s" in text
    assert "100 runs, 1,000,000,000 training images in total" in text
    study = recipes.get("table3").study("small")
    assert cost.words(study, 1000.0).endswith("1.7 hours at the 1,000 images/s of the finished runs")
