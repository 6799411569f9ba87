"""Fail unless the tag, gradcent.__version__, the changelog and the citation file state the same version.

    python tools/check_version.py v0.2.0

The version is stated in src/gradcent/__init__.py. This script reads it without importing torch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def stated_version() -> str:
    """Return `__version__` of the library."""
    text = (ROOT / "src" / "gradcent" / "__init__.py").read_text()
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise SystemExit('src/gradcent/__init__.py has no line __version__ = "…"')
    return match[1]


def problems(tag: str) -> list[str]:
    """Return what does not fit the tag, one sentence each."""
    version = stated_version()
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, but src/gradcent/__init__.py states {version}")
    if not re.search(
        rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", (ROOT / "CHANGELOG.md").read_text(), re.M
    ):
        found.append(f"CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)'")
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text():
        found.append(f"CITATION.cff does not say 'version: {version}'")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    lines = problems(sys.argv[1])
    print("\n".join(lines) or f"{sys.argv[1]}: tag, library, changelog and citation agree")
    sys.exit(bool(lines))
