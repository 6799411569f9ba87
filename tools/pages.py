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
    """What a step costs, from the committed run of `gradcent bench`; targets that were missed are counted."""
    data = json.loads((RESULTS / "bench" / "bench.json").read_text())
    lines = [
        "| one step, ms (medians) | ours, with GC | torch fused, no GC | the usual loop + torch fused | torch foreach, no GC |",
        "|---|---|---|---|---|",
    ]
    ways = ("gradcent", "torch fused", "naive GC + torch fused", "torch foreach")
    for step in data["steps"]:
        times = [f"{step['times'][way]['median_ms']:.1f}" for way in ways]
        lines.append(f"| {step['list']}, {step['optimizer']} | {' | '.join(times)} |")
    machine, targets = data["machine"], data["targets"]
    reached = sum(target["reached"] for target in targets)
    lines.append(
        f"\n`gradcent bench --quick` on {machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, on a machine "
        f"that was not quiet (load average {machine['load_average'][0]}). Of our own speed targets it reaches {reached} of "
        f"{len(targets)}: a step with GC is not yet faster than torch's fused step without on large models."
    )
    return "\n".join(lines)


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
