"""Fail unless the library, the changelog and the citation file state the same version; with a tag, that one.

    python tools/check_version.py           run by the tests
    python tools/check_version.py v0.2.0    run by the release workflow: the tag fits and the release is dated

The version is stated in src/gradcent/__init__.py. This script reads it without importing torch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def stated_version(root: Path = ROOT) -> str:
    """Return `__version__` of the library."""
    text = (root / "src" / "gradcent" / "__init__.py").read_text()
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise SystemExit('src/gradcent/__init__.py has no line __version__ = "…"')
    return match[1]


def problems(tag: str | None = None, root: Path = ROOT) -> list[str]:
    """Return what disagrees with the stated version, one sentence each."""
    version = stated_version(root)
    lines = []
    if tag is not None and tag != f"v{version}":
        lines.append(f"the tag is {tag}, but src/gradcent/__init__.py states {version}")
    date = r"\d{4}-\d\d-\d\d" if tag is not None else r"(unreleased|\d{4}-\d\d-\d\d)"
    heading = re.compile(rf"^## {re.escape(version)} \({date}\)$", re.MULTILINE)
    if not heading.search((root / "CHANGELOG.md").read_text()):
        wanted = "YYYY-MM-DD" if tag is not None else "unreleased"
        lines.append(f"CHANGELOG.md has no heading '## {version} ({wanted})'")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text():
        lines.append(f"CITATION.cff does not state 'version: {version}'")
    return lines


if __name__ == "__main__":
    if len(sys.argv) > 2:
        raise SystemExit(__doc__)
    wrong = problems(*sys.argv[1:])
    print("\n".join(wrong) or f"library, changelog and citation state {stated_version()}")
    sys.exit(bool(wrong))
