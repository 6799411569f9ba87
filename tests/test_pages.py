"""No number in README and docs is typed in: the generated blocks are what results/ says today."""

import importlib.util
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def pages():
    pytest.importorskip("scipy", reason="needs the lab: pip install 'gradcent[lab]'")
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_page_is_stale(pages, capsys):
    assert pages.main(check=True) == 0, capsys.readouterr().out


def verdicts(text):
    """The cells below every heading `verdict` of a Markdown text's tables."""
    column = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if column is None:
            column = cells.index("verdict") if "verdict" in cells else None
        elif not cells:
            column = None
        elif not set(cells[column]) <= set("-:"):
            yield cells[column]


def test_every_verdict_on_a_page_is_one_of_the_vocabulary():
    """Runs that show no difference do not show that there is none: the pages never say "no effect"."""
    pytest.importorskip("scipy", reason="needs the lab: pip install 'gradcent[lab]'")
    from gradcent_lab.analysis.verdict import Kind

    known = (*get_args(Kind), "no difference larger than", "–")
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "results").rglob("*.md")]
    found = {path.name: list(verdicts(path.read_text())) for path in files}
    assert len(found["tables.md"]) == len(found["detection.md"]) == 2
    wrong = [
        (name, cell)
        for name, cells in found.items()
        for cell in cells
        if not cell.strip("*").startswith(known)
    ]
    assert wrong == []


def test_a_typed_in_number_is_noticed(pages):
    page = (ROOT / "README.md").read_text()
    block = page.split("<!-- begin study -->")[1].split("<!-- end study -->")[0]
    assert "±" in block
    tampered = page.replace(block, block.replace("+", "+1", 1))
    assert pages.filled(tampered) == page
