"""Names with markup, formulas and separators: shown literally, never executed, never outside the folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_records as synthetic
import toy

from gradcent_lab.analysis.findings import findings
from gradcent_lab.cli import main
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.report.html import Section
from gradcent_lab.report.write import write_section
from gradcent_lab.run.scheduler import run_pairs

HERE = Path(__file__).parent
HOSTILE = r"$\frac{$ [/bold] <script>alert(1)</script> {0}"


def test_report_writes_hostile_names_inside_its_folder(tmp_path, capsys):
    """A cell, an arm and a scale that try to leave the folder, to be markup and to be a formula."""
    root = tmp_path / "deep" / "runs"
    experiment = replace(toy.experiment(), epochs=1, name="$x$ [red]y", metric_name=HOSTILE)
    arms = [replace(OFF, name="off[/dim]"), replace(ON, name=HOSTILE)]
    run_pairs(experiment, arms, [0, 1], root, cell=HOSTILE, scale="../../../evil")
    assert main(["report", str(root), "--out", str(tmp_path / "deep" / "o[/bold]x")]) == 0
    assert "o[/bold]x/report.html" in capsys.readouterr().out.replace("\n", "")
    page = (tmp_path / "deep" / "o[/bold]x" / "report.html").read_text()
    assert "<script>alert" not in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep"]
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["o[", "runs"]


def test_figures_show_a_lone_formula_as_text(tmp_path):
    records = synthetic.study(cell=HOSTILE)
    section = Section(records, findings(records), title=HOSTILE, description=HOSTILE)
    drawn, _ = write_section(section, tmp_path)
    assert drawn


def test_cells_of_long_and_similar_names_have_figures_of_their_own(tmp_path):
    cells = ["R18, b/2", "R18, b:2", "x" * 480, "x" * 490]
    records = [record for cell in cells for record in synthetic.study(cell=cell, n=2, epochs=2)]
    drawn, _ = write_section(Section(records, findings(records), title="t"), tmp_path)
    curves = [path for path in drawn if path.name.startswith("curves") and path.suffix == ".png"]
    assert len(set(curves)) == len(cells)
    assert all(path.is_file() for path in curves)


@pytest.mark.slow
def test_compare_with_markup_in_its_folder(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
    command = [sys.executable, "-m", "gradcent_lab.cli", "compare", "toy:experiment", "--seeds", "1"]
    answer = subprocess.run(
        [*command, "--epochs", "1", "--out", "o[/bold]x"], env=environment, cwd=tmp_path, capture_output=True
    )
    assert answer.returncode == 0, answer.stderr
    assert b"o[/bold]x/report.html" in answer.stdout
