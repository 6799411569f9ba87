"""Tables: the numbers in them, and that every format can be read back."""

import csv
import io
import shutil
import subprocess

import pytest
from synthetic_records import record, study

from gradcent_lab.analysis.findings import findings
from gradcent_lab.analysis.statistics import Summary
from gradcent_lab.report.tables import (
    findings_csv,
    findings_table,
    interval_text,
    mean_std,
    other_epoch,
    signed,
)


def test_markdown_has_paper_ours_n_interval_verdict_and_scale():
    found = findings(study(), table=1, epoch="best")
    text = findings_table(found, "10 epochs instead of 200").markdown()
    assert text.startswith("**table1, small scale: 10 epochs instead of 200**")
    line = next(line for line in text.splitlines() if line.startswith("| R18"))
    assert "76.87 → 78.82 (+1.95)" in line
    assert f"| 5 | {signed(found[0].comparison.difference, 2)} | {interval_text(found[0])} |" in line
    assert line.endswith("| same direction |")
    assert "| V11 | 70.94 → 71.69 (+0.75) | – | – | 0 | – | – | – | not run at this scale |" in text
    assert "best epoch" in text


def test_single_pairs_and_few_pairs_say_so():
    one = findings_table(findings(study(n=1)))
    assert one.rows[0][5:7] == ("–", "–") or "–" in one.rows[0]
    few = findings_table(findings(study(n=3)))
    assert any("Student" in note for note in few.notes)


def test_unpaired_seeds_are_named_under_the_table():
    table = findings_table(findings([*study(), record(seed=11)]))
    assert any("only one arm was run: seed 11" in note for note in table.notes)


def test_csv_reads_back_with_full_precision():
    found = findings(study(), table=1, epoch="best")
    rows = list(csv.DictReader(io.StringIO(findings_csv(found))))
    assert len(rows) == 5
    assert float(rows[0]["difference"]) == found[0].comparison.difference
    assert rows[0]["seeds"] == "0 1 2 3 4"
    assert rows[0]["verdict"] == "same direction"
    assert rows[1]["n"] == "0"
    assert None not in rows[0]
    assert None not in rows[1].values()


def test_latex_escapes_and_balances():
    text = findings_table(findings(study(cell="a_b & 5%", study="own_study")), "50 % of the data").latex()
    assert r"a\_b \& 5\%" in text
    assert r"$\pm$" in text
    columns = text.split(r"\begin{tabular}{")[1].split("}")[0]
    body = [line for line in text.splitlines() if line.rstrip().endswith(r"\\")]
    assert all(line.count("&") - line.count(r"\&") == len(columns) - 1 for line in body)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex on this machine")
def test_latex_compiles(tmp_path):
    table = findings_table(findings(study(), table=1, epoch="best")).latex()
    source = (
        "\\documentclass{article}\\usepackage[utf8]{inputenc}\\begin{document}" + table + "\\end{document}"
    )
    (tmp_path / "t.tex").write_text(source)
    subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_the_last_epoch_stands_beside_the_best():
    """The paper prints the best epoch; both are reported, and only where a run has more than one."""
    found = findings(study(), table=1, epoch="best")
    (table,) = other_epoch(found)
    assert table.title == "The same pairs at the last epoch"
    assert len(table.rows) == 1
    last = found[0].at("last")
    assert table.rows[0][1] == mean_std(last.without, 2)
    assert last.without.mean != found[0].comparison.without.mean
    assert len(table.header) == len(table.rows[0])
    assert other_epoch(findings(study(epochs=1), epoch="best")) == []
    assert other_epoch(findings(study(study="mine"))) == []  # judged by the last already


def test_number_words():
    assert mean_std(Summary(1, 3.14159, float("nan")), 2) == "3.14"
    assert signed(0.004, 2) == "0.00"
