"""`gradcent report` on a folder of real runs: the paper's figures, tables of measurements, switches."""

from dataclasses import replace

import pytest
from synthetic_records import record

from gradcent_lab import recipes
from gradcent_lab.cli import main
from gradcent_lab.experiment.run_config import Numerics
from gradcent_lab.experiment.study import tasks_of
from gradcent_lab.report.sections import sections
from gradcent_lab.run.scheduler import run_study
from gradcent_lab.store import records as store
from gradcent_lab.store.records import load

RESULT = {
    "best": 1.0,
    "best_epoch": 1,
    "last": 1.0,
    "metric_name": "accuracy, %",
    "higher_is_better": True,
    "initial_weights": "",
    "seconds": 1.0,
}


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
    assert "Figure 2: The projection of the gradient" in page
    assert "4.1 SGDM keeps the sums" in page
    assert "gradcent run theory --scale smoke" in page
    assert "Scale “smoke”, not the paper&#x27;s: 20 steps" in page
    assert "Scale of the paper: a quadratic loss in three dimensions, the same at every scale" in page
    assert "+0.85 %" in page  # the paper's overhead, beside ours
    assert "seconds per epoch (lower is better)" in page  # a measurement has no last epoch
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
    names = [section.name for section in sections(load(root), recipes.all_recipes())]
    assert names == ["fig2", "theory", "overhead"]


@pytest.fixture
def shared(tmp_path):
    """Runs of table 3 with decay 1e-4, and of table 2 with SGDM, which are table 3's with 5e-4."""
    for task in tasks_of(recipes.get("table3").study("smoke"), None):
        if task.config.cell in ("1e-4", "SGDM"):
            folder = store.folder(tmp_path, task.config)
            store.begin(folder, task.config)
            store.finish(folder, RESULT, [{"epoch": 1, "train_loss": 1.0, "eval_metric": 1.0}])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table2", "table3"]
    return tmp_path


def test_one_table_keeps_the_cell_whose_runs_are_another_tables(shared, capsys):
    assert main(["report", str(shared), "--study", "table3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    judged = [line.split()[:3] for line in lines if line.startswith("  table")]
    assert judged == [["table3", "(smoke)", "1e-4"], ["table3", "(smoke)", "5e-4"]]
    assert sorted(path.name for path in (shared / "report").iterdir()) == ["report.html", "table3-smoke"]


def test_the_list_counts_the_shared_runs(shared, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["list", "--root", str(shared)]) == 0
    done = {
        line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.strip()
    }
    assert (done["table1"], done["table2"], done["table3"], done["table4"]) == ("–", "2", "4", "2")


def test_how_to_repeat_names_cells_seeds_and_arithmetic(tmp_path):
    """The printed command makes the very runs that the section shows."""
    recipe = recipes.get("table1")
    study = replace(recipe.study("smoke", {"layers": "all"}), seeds=(0, 1), numerics=Numerics("bf16"))
    runs = []
    for task in tasks_of(study, None):
        if task.config.cell == "R18":
            run = record(arm=task.config.arm.name, seed=task.config.seed, scale="smoke")
            config, path = task.config.as_dict(), tmp_path / task.config.run_id
            runs.append(replace(run, config=config, path=path, recipe=task.config.recipe))
    (section,) = sections(runs, recipes.all_recipes())
    words = "gradcent run table1 --scale smoke --set layers=all --cell R18 --seeds 2 --precision bf16"
    assert section.repeat == (words,)


def test_switches_and_scale_are_recorded_with_a_run_and_are_not_part_of_its_identity(tmp_path):
    recipe = recipes.get("fig4")
    default, changed = (recipe.study("smoke", chosen) for chosen in ({}, {"momentum": "paper"}))
    assert tasks_of(default, None)[0].config.run_id != tasks_of(changed, None)[0].config.run_id
    config = tasks_of(changed, None)[0].config
    assert config.recipe.switches == {"momentum": "paper"}
    assert replace(config, recipe=None).run_id == config.run_id
    folder = store.folder(tmp_path, config)
    store.begin(folder, config)
    store.finish(folder, RESULT, [{"epoch": 1, "eval_metric": 1.0}])
    assert store.load_run(folder).recipe == config.recipe


def test_runs_of_earlier_versions_are_shown_with_the_recipes_notes(tmp_path):
    """A record without recipe.json has no switches: the section shows the fixed notes only."""
    recipe = recipes.get("table2")
    runs = [record(study="table2", cell="SGDM", arm=arm) for arm in ("off", "on")]
    (section,) = sections(runs, recipes.all_recipes())
    assert section.notes == recipe.notes
    assert section.description == recipe.scale("small").description
    assert section.scale_name == "Scale “small”, not the paper's"
