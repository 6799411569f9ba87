"""No number in README and docs is typed in: the generated blocks are what results/ says today."""

import importlib.util
from pathlib import Path

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


def test_a_typed_in_number_is_noticed(pages):
    page = (ROOT / "README.md").read_text()
    block = page.split("<!-- begin study -->")[1].split("<!-- end study -->")[0]
    assert "±" in block
    tampered = page.replace(block, block.replace("+", "+1", 1))
    assert pages.filled(tampered) == page
