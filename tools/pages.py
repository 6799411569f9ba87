"""Fill the generated blocks of README and docs from results/, so that no number in them is typed in.

    python tools/pages.py            writes the blocks
    python tools/pages.py --check    fails, naming the page, when a block is stale

A block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def study() -> str:
    """The study that opens the README: its table, and the curves."""
    from gradcent_lab import store
    from gradcent_lab.evidence import findings
    from gradcent_lab.sections import sections
    from gradcent_lab.tables import findings_table

    root = RESULTS / "studies"
    records = [record for record in store.load(root) if record.study == "cifar100-small"]
    section = next(each for each in sections(records, root) if each.name == "cifar100-small")
    table = findings_table(findings(records), section.scale_words)
    return f"{table.markdown()}\n![training and test curves](results/studies/curves.png)"


def bench() -> str:
    """What a step costs, from the committed run of `gradcent bench`."""
    if not (RESULTS / "bench" / "bench.json").exists():
        return ""
    return json.loads((RESULTS / "bench" / "bench.json").read_text())["markdown"]


BLOCKS: dict[str, Callable[[], str]] = {"study": study, "bench": bench}


def filled(text: str) -> str:
    """Return a page with each of its blocks made anew."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if pattern.search(text):
            body = make().strip()
            text = pattern.sub(lambda match, body=body: f"{match[1]}{body}\n{match[2]}", text)
    return text


def main(check: bool) -> int:
    """Write the pages, or say which are stale."""
    stale = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        old = page.read_text()
        new = filled(old)
        if new != old:
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(new)
    for page in stale:
        print(f"{page}: {'stale; run python tools/pages.py' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
