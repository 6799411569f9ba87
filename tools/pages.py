"""Fill the generated blocks of README and docs from results/, so that no number in them is typed in.

    python tools/pages.py            writes the blocks
    python tools/pages.py --check    fails, naming the page, when a block is stale

A block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
sys.path.insert(0, str(ROOT / "tools"))

import calibration_table  # noqa: E402
import forecast_pages  # noqa: E402

# the rows of the README's first table: the demo's cases, in words that need no other page
DEMO_ROWS = {
    "digits, epoch 10": "digits, 200 images, after 10 epochs",
    "digits, epoch 40": "the same runs, after 40 epochs",
    "brightness, epoch 20": "brightness of an image (the mean *is* the label)",
    "brightness, epoch 20, hidden": 'the same with `layers="hidden"`',
}


def study() -> str:
    """The README's table: the demo's three cases."""
    from evidence.blocks import table_rows

    rows = table_rows((RESULTS / "demo" / "table.md").read_text())
    lines = [
        "| test accuracy, % | without GC | with GC | difference | 95 % interval | pairs | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, words in DEMO_ROWS.items():
        cell = key.removesuffix(", hidden")
        arms = ("hidden",) if key != cell else ("on", "all")
        lines.append(_glance_row(words, next(r for r in rows if r["cell"] == cell and r["GC on"] in arms)))
    return "\n".join(lines)


def _glance_row(words: str, row: dict[str, str]) -> str:
    """A row of the README's table; an interval of another level than 95 % names it."""
    interval = row["interval"].removesuffix(" (95 %)")
    cells = (row["without GC"], row["with GC"], row["difference"], interval, row["n"])
    return f"| {words} | {' | '.join(cells)} | **{row['verdict']}** |"


LIST_NAMES = {
    "resnet50": "ResNet-50",
    "vit_b_16": "ViT-B/16",
    "gpt2_small": "GPT-2",
    "2000x32x32": "2,000 small tensors",
}


def bench() -> str:
    """What a step costs, from the committed run of `gradcent bench`: the two optimizers most used, and the targets."""
    data = json.loads((RESULTS / "bench" / "bench.json").read_text())
    lines = [
        "| one optimizer step on the CPU, ms | gradcent, with GC | torch fused, without GC | ratio | GC as a Python loop + torch fused |",
        "|---|---|---|---|---|",
    ]
    ways = ("gradcent", "torch fused", "naive GC + torch fused")
    for step in data["steps"]:
        if step["optimizer"] not in ("SGDM", "AdamW"):
            continue
        ours, fused, loop = [f"{step['times'][way]['median_ms']:.1f}" for way in ways]
        name = f"{LIST_NAMES.get(step['list'], step['list'])}, {step['optimizer'].replace('SGDM', 'SGD')}"
        lines.append(f"| {name} | {ours} | {fused} | {step['ours_over_fused']:.2f} | {loop} |")
    machine, targets, training = data["machine"], data["targets"], data["training_step"]
    reached = sum(target["reached"] for target in targets)
    lines.append(
        f"\nMedians of `gradcent bench` on {machine['processor']}, {machine['threads']} threads, torch {machine['torch'].split('+')[0]}. "
        f"A whole training step of a ResNet-18 takes {training['with_over_without']:.2f} times as long with GC as without. Of our own speed targets "
        f"{reached} of {len(targets)} are reached: [where it falls short, and why](docs/kernels.md#where-it-falls-short)."
    )
    return "\n".join(lines)


def ratios() -> str:
    """Ours ÷ torch fused for every list and optimizer, and the targets that the committed bench misses."""
    data = json.loads((RESULTS / "bench" / "bench.json").read_text())
    found: dict[str, dict[str, float]] = {}
    for step in data["steps"]:
        found.setdefault(step["list"], {})[step["optimizer"]] = step["ours_over_fused"]
    optimizers = list(next(iter(found.values())))
    lines = [
        f"| ours ÷ torch fused without GC | {' | '.join(optimizers)} |",
        "|---" * (len(optimizers) + 1) + "|",
    ]
    lines += [
        f"| {name} | {' | '.join(f'{row[each]:.2f}' for each in optimizers)} |" for name, row in found.items()
    ]
    missed = [row for row in data["targets"] if not row["reached"]]
    lines += [
        "",
        f"{len(data['targets']) - len(missed)} of {len(data['targets'])} targets are reached. Missed:",
        "",
    ]
    lines += [
        f"- {row['figure']}: {row['value']:.2f}, wanted {row['sign']} {row['limit']:g}" for row in missed
    ]
    return "\n".join(lines)


def architectures() -> str:
    """Class rules against traces over published architectures, by library."""
    lines = [json.loads(line) for line in (RESULTS / "architectures.jsonl").read_text().splitlines()]
    table = [
        "| library | tried | compared | not built or not run on meta tensors | weights compared | disagreements | weights only tracing finds | centralized by rules alone → with tracing, where tracing adds more than 1 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for library in dict.fromkeys(line["library"] for line in lines):
        mine = [line for line in lines if line["library"] == library]
        run = [line for line in mine if "weights" in line]
        gains = sorted(
            (line for line in run if line["share_traced"] - line["share_rules"] > 0.01),
            key=lambda line: line["share_rules"] - line["share_traced"],
        )
        shown = "; ".join(
            f"{line['name']} {100 * line['share_rules']:.0f} → {100 * line['share_traced']:.0f} %"
            for line in gains[:6]
        )
        more = f" and {len(gains) - 6} more" if len(gains) > 6 else ""
        table.append(
            f"| {library} | {len(mine)} | {len(run)} | {len(mine) - len(run)} | {sum(line['weights'] for line in run):,} | "
            f"{sum(len(line['disagreements']) for line in run)} | {sum(line['only_traced'] for line in run):,} | {shown}{more} |"
        )
    return "\n".join(table)


def campaigns() -> str:
    """What the campaigns of tools/campaigns tried and found."""
    from campaigns.table import campaigns_table

    return campaigns_table(RESULTS / "campaigns")


def evidence(name: str) -> Callable[[], str]:
    """Return the function that makes a block of docs/does-it-help.md, or the README's opening."""

    def make() -> str:
        from evidence import blocks

        text: str = getattr(blocks, name)(RESULTS / "studies")
        return text

    return make


def evidence_figures(check: bool) -> list[Path]:
    """Draw the figures of docs/does-it-help.md, or return those that were drawn from other runs."""
    from evidence.blocks import draw, stale_figures

    folder = ROOT / "docs" / "images" / "evidence"
    if not check:
        draw(RESULTS / "studies", folder)
    return stale_figures(RESULTS / "studies", folder)


def optimizers() -> str:
    """How many of the calibration tasks get better or worse with GC, by optimizer; both arms are tuned."""
    from gradcent_lab.forecasting.calibration.outcomes import outcomes as read_outcomes
    from gradcent_lab.store import records as store

    stored = [record for record in store.load(RESULTS / "studies") if record.study == "forecast"]
    tasks = read_outcomes({record.cell: record.curves for record in stored})
    lines = [
        "| optimizer | tasks | training loss lower / about equal / higher | test loss lower / about equal / higher |",
        "|---|---|---|---|",
    ]
    for name in dict.fromkeys(entry.task.optimizer for entry in tasks):
        chosen = [entry for entry in tasks if entry.task.optimizer == name]
        counts = []
        for loss in ("train", "test"):
            changes = [getattr(entry, loss)["all"] for entry in chosen]
            lower, higher = sum(change.faster for change in changes), sum(change.slower for change in changes)
            counts.append(f"{lower} / {len(changes) - lower - higher} / {higher}")
        lines.append(f"| {name} | {len(chosen)} | {' | '.join(counts)} |")
    return "\n".join(lines)


def detection(title: str) -> str:
    """One table of results/detection/tables.md, with the notes below it."""
    text = (RESULTS / "detection" / "tables.md").read_text()
    tables = re.split(r"^(?=\*\*)", text, flags=re.MULTILINE)
    return next(table for table in tables if table.startswith(f"**{title}"))


BLOCKS: dict[str, Callable[[], str]] = {
    **{
        f"evidence-{name}": evidence(name)
        for name in (
            "answer",
            "answers",
            "opening",
            "comparisons",
            "rates",
            "curves",
            "why",
            "exact",
            "missing",
        )
    },
    "architectures": architectures,
    "study": study,
    "bench": bench,
    "ratios": ratios,
    "campaigns": campaigns,
    "optimizers": optimizers,
    "detection-pair": lambda: detection("Mask R-CNN"),
    "unet-energy": lambda: detection("Energy"),
    "unet-drift": lambda: detection("Drift"),
    "unet-pairs": lambda: detection("unet"),
    **forecast_pages.BLOCKS,
}


def filled(text: str) -> str:
    """Return a page with each of its blocks made anew."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if pattern.search(text):
            body = make().strip()
            text = pattern.sub(lambda match, body=body: f"{match[1]}{body}\n{match[2]}", text)
    return text


def main(check: bool) -> int:
    """Write the pages and the library's calibration table, or say which are stale."""
    stale = [path.relative_to(ROOT) for path in evidence_figures(check)]
    table = calibration_table.TARGET
    for page in (table, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        old = page.read_text()
        new = calibration_table.filled(old) if page == table else filled(old)
        if new != old:
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(new)
                if page == table:  # the pages below show it
                    importlib.reload(importlib.import_module("gradcent.calibration"))
    for page in stale:
        print(f"{page}: {'stale; run python tools/pages.py' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fill the blocks of README and docs from results/.")
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    sys.exit(main(parser.parse_args().check))
