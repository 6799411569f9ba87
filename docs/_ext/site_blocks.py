"""Sphinx extension: replaces `<!-- site: NAME -->` by a figure or text that is computed when the site is built.

The blocks of tools/pages.py are committed with their pages, so that GitHub shows them. The blocks here exist in the
site only: figures that follow the reader's light or dark mode, and the gallery, which grows with results/.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import calibration_figure
import commands_help
import gallery
import import_graph
import weight_vectors

BLOCKS: dict[str, Callable[[], str]] = {
    "weight-vectors": weight_vectors.layouts_figure,
    "projection": weight_vectors.projection_figure,
    "gallery": gallery.markdown,
    "forecast-outcome": calibration_figure.markdown,
    "commands": commands_help.markdown,
    "library-imports": lambda: import_graph.markdown("gradcent"),
    "lab-imports": lambda: import_graph.markdown("gradcent_lab"),
}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MARK = re.compile(r"^<!-- site: ([\w-]+)(?: ([\w./]+))? -->$", re.MULTILINE)


def block(name: str, argument: str | None) -> str:
    """Return a block; `example FILE` is a file of examples/ as a code block."""
    if name == "example" and argument is not None:
        return f"## The example in full\n\n```python\n{(EXAMPLES / argument).read_text()}```\n"
    return BLOCKS[name]()


def fill(app: Any, page: str, source: list[str]) -> None:
    """Replace the marks of one page; an unknown name is an error."""
    source[0] = MARK.sub(lambda match: block(match[1], match[2]), source[0])


def always_outdated(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Return the pages with marks: they depend on the source and on results/, which Sphinx does not watch."""
    return [page for page in env.found_docs if MARK.search(env.doc2path(page).read_text())]


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", fill)
    app.connect("env-get-outdated", always_outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
