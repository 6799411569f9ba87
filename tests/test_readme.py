"""Every Python block in README and docs runs, in the order of the page, as a reader would paste it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.exists()]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = {page: blocks for page in PAGES if (blocks := BLOCK.findall(page.read_text()))}


def test_the_readme_has_python_blocks():
    assert ROOT / "README.md" in BLOCKS


@pytest.mark.parametrize("page", BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__readme__"}
    for number, block in enumerate(BLOCKS[page], 1):
        exec(compile(block, f"{page.name} block {number}", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_of_the_repository_exist(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
