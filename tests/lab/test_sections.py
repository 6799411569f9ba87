"""`gradcent report` on a folder of real runs: the paper's figures, tables of measurements, switches."""

import pytest

from gradcent_lab import recipes
from gradcent_lab.cli import main
from gradcent_lab.experiment.study import tasks_of
from gradcent_lab.report.sections import sections, switches
from gradcent_lab.run.scheduler import run_study
from gradcent_lab.store.records import load


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs of the recipes that need no data."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("fig2", "theory", "overhead"):
        run_study(recipes.get(name).study("smoke"), folder)
    return folder


def test_report_draws_what_the_runs_can_show(root, capsys):
    assert main(["report", str(root)]) == 0
    text = capsys.readouterr().out
    assert "overhead (smoke) R8" in text
    page = (root / "report" / "report.html").read_text()
    assert "Figure 2: The projection picture" in page
    assert "4.1 SGDM keeps the sums" in page
    assert "gradcent run theory --scale smoke" in page
    assert "Scale “smoke”, not the paper&#x27;s: 20 steps" in page
    assert "Scale “smoke”: a quadratic loss in three dimensions, the same at every scale" in page
    assert "+0.85 %" in page  # the paper's overhead, beside ours
    assert "seconds an epoch (lower is better)" in page  # a measurement has no last epoch
    assert "&gt; 1e-09" in page
    assert "Table 1: Networks on CIFAR-100" in page  # not run here
    assert (root / "report" / "fig2-smoke" / "fig2.png").exists()
    assert "holds" in (root / "report" / "theory-smoke" / "table-1.md").read_text()


def test_only_the_asked_for_studies_are_in_it(root, tmp_path):
    assert main(["report", str(root), "--study", "theory", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "theory-smoke"]


def test_nothing_to_report_is_one_line(root, tmp_path, capsys):
    assert main(["report", str(root), "--study", "table1"]) == 2
    assert "has no finished runs of table1 (it has fig2, overhead, theory)" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_sections_are_in_the_papers_order(root):
    assert [section.name for section in sections(load(root))] == ["fig2", "overhead", "theory"]


def test_how_to_repeat_names_cells_seeds_and_arithmetic(tmp_path):
    """The printed command makes the very runs that the section shows."""
    from dataclasses import replace

    from synthetic_records import record

    from gradcent_lab.experiment.run_config import Numerics

    recipe = recipes.get("table1")
    study = replace(recipe.study("smoke", {"layers": "all"}), seeds=(0, 1), numerics=Numerics("bf16"))
    runs = []
    for task in tasks_of(study, None):
        if task.config.cell == "R18":
            run = record(arm=task.config.arm.name, seed=task.config.seed, scale="smoke")
            config = task.config.as_dict()
            runs.append(replace(run, config=config, path=tmp_path / task.config.run_id))
    (section,) = sections(runs)
    words = "gradcent run table1 --scale smoke --set layers=all --cell R18 --seeds 2 --precision bf16"
    assert section.repeat == (words,)


def test_the_switches_of_stored_runs_are_found_again():
    from synthetic_records import record

    recipe = recipes.get("table1")
    names = list(recipe.switches)
    for value in recipe.switches[names[0]].choices:
        chosen = {names[0]: value}
        task = tasks_of(recipe.study("small", chosen), None)[1]
        run = record(arm=task.config.arm.name)
        object.__setattr__(run, "path", run.path.with_name(task.config.run_id))
        assert switches(recipe, "small", [run])[0][names[0]] == value
