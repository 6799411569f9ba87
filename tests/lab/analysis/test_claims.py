"""The claims file against the paper itself: the LaTeX tables are parsed here, independently of the file."""

import os
import re
from pathlib import Path

import pytest

from gradcent_lab.analysis import paper_claims as claims

REPOSITORY = Path(__file__).resolve().parents[3]


def paper() -> str:
    name = "gradient-centralization.tex"
    places = [Path(os.environ["GRADCENT_PAPER"])] if "GRADCENT_PAPER" in os.environ else []
    places += [REPOSITORY.parent / "shared" / "paper" / name]
    for place in places:
        place = place / name if place.is_dir() else place
        if place.is_file():
            return place.read_text(encoding="utf-8")
    pytest.skip(f"the paper's LaTeX is not at {places[-1]}; set GRADCENT_PAPER to its path")


def plain(cell: str) -> str:
    """A LaTeX table cell as the text a reader sees."""
    cell = re.sub(r"\\textbf\{(.*)\}", r"\1", cell)
    cell = re.sub(r"\\text\{(.*?)\}", r"\1", cell)
    cell = re.sub(r"[${}^_]", "", cell.replace(r"\pm", "±").replace(r"\#", "#"))
    return re.sub(r"\s*±\s*", "±", " ".join(cell.split()))


def tables(tex: str) -> list[list[list[str]]]:
    """The body of every tabular as rows of cells."""
    found = []
    for body in re.findall(r"\\begin\{tabular\}(?:\[t\])?\{.*?\}%?\n(.*?)\\end\{tabular\}", tex, re.DOTALL):
        lines = body.replace(r"\hline", "").split(r"\\")
        found.append([[plain(cell) for cell in line.split("&")] for line in lines if line.strip()])
    return found


def numbers(cell: str) -> tuple[float, float | None]:
    mean, _, std = cell.replace(",", "").partition("±")
    return float(mean), float(std) if std else None


def printed(tex: str) -> dict[tuple[int, str, str], tuple[float, float | None]]:
    """(table, row, column) → (mean, std) of everything printed in tables 1 to 9."""
    result = {}
    for index, rows in enumerate(tables(tex), start=1):
        header, body = rows[0], rows[1:]
        if index == 4:
            header = ["", *(f"{name} {rate}" for name, rate in zip(header[1:], body.pop(0)[1:], strict=True))]
        if index <= 7:
            for row in body:
                for column, cell in zip(header[1:], row[1:], strict=True):
                    result[index, row[0], column] = numbers(cell)
            continue
        half = header.index("Backbone", 2)  # two blocks of columns side by side, each with its backbone
        for row in body:
            for start in (1, half):
                if start < len(row):
                    for metric, cell in zip(
                        header[start + 1 : start + half - 1], row[start + 1 :], strict=False
                    ):
                        result[index, row[0], f"{row[start]} {metric}"] = numbers(cell)
    return result


def test_every_number_in_the_papers_tables_is_in_the_file_and_nothing_else():
    expected = printed(paper())
    ours = {(c.table, c.row, c.column): (c.mean, c.std) for c in claims.claims()}
    assert len(tables(paper())) == len(claims.TABLES)
    assert ours == expected
    assert len(ours) == len(claims.claims())  # no line twice


def test_the_overhead_figure_is_the_papers():
    text = paper()
    assert f"${claims.EXTRA_SECONDS_PER_EPOCH}$ sec extra training time" in text
    assert f"({claims.SECONDS_PER_EPOCH:.0f} sec for one epoch)" in text


def test_repeats_follow_the_printed_deviations():
    for claim in claims.claims():
        assert (claim.std is not None) == (claims.TABLES[claim.table].repeats > 1)


def test_pairs_and_lookup():
    pairs = claims.paired_claims()
    assert len(pairs) == (len(claims.claims()) - 12) // 2  # table 6 has no arms
    r18 = claims.find(1, "R18")
    assert r18.difference == pytest.approx(1.95)
    assert r18.standard_error == pytest.approx(((0.26**2 + 0.31**2) / 10) ** 0.5)
    assert claims.find(5, "R50GN").difference == pytest.approx(-0.97)
    assert claims.find(5, "R50GN").standard_error is None
    assert claims.find(1, "R34") is None


def test_every_claim_of_the_paper_is_an_improvement():
    for pair in claims.paired_claims():
        assert (pair.difference > 0) == pair.info.higher_is_better
