"""What Tables 8 and 9 show beside the table of pairs: the paper's table, both arms on images, costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from gradcent_lab.analysis import paper_claims
from gradcent_lab.analysis.findings import is_baseline
from gradcent_lab.detection.examples import SHOWN, load_examples
from gradcent_lab.recipes.presentation.detection_examples import side_by_side
from gradcent_lab.report.section import Picture
from gradcent_lab.report.tables import DASH, Table
from gradcent_lab.store.atomic_files import read_json
from gradcent_lab.store.records import RunRecord

MOST_FIGURES = 3


def tables(number: int, records: Sequence[RunRecord]) -> list[Table]:
    """Return the paper's table `number` in its shape, and the costs of the runs."""
    return [paper_table(number, records), cost_table(records)]


def paper_table(number: int, records: Sequence[RunRecord]) -> Table:
    """Return one line per network and arm, one column per metric: ours, and the paper's in brackets."""
    metrics = records[0].metrics
    pairs = {c.cell: c for c in paper_claims.paired_claims() if c.table == number}
    names = dict.fromkeys(cell.rpartition(" ")[0] for cell in pairs)
    names |= dict.fromkeys(record.cell for record in records)
    rows = []
    for name in names:
        for on, arm in ((False, paper_claims.WITHOUT), (True, paper_claims.WITH)):
            runs = [r for r in records if r.cell == name and is_baseline(r) != on]
            cells = []
            for metric in metrics:
                claim = pairs.get(f"{name} {metric}")
                printed = (claim.with_ if on else claim.without).mean if claim else None
                ours = _mean_std([run.curves[-1][metric] for run in runs])
                cells.append(f"{ours} ({printed:.1f})" if printed is not None else ours)
            rows.append((name, arm, *cells, str(len(runs))))
    caption = f"{records[0].scale} scale; last epoch, mean ± standard deviation over n runs, the paper's in brackets"
    return Table(
        f"Table {number} in the paper's shape", ("backbone", "method", *metrics, "n"), tuple(rows), (caption,)
    )


def cost_table(records: Sequence[RunRecord]) -> Table:
    """Return time and memory of every cell and arm, and what was cleaned in the annotations."""
    rows = []
    for name, arm in dict.fromkeys((record.cell, record.arm) for record in records):
        runs = [record for record in records if (record.cell, record.arm) == (name, arm)]
        lines = [line for run in runs for line in run.curves]
        seconds = mean(line["seconds_per_step"] for line in lines)
        memory = max(line["memory_mib"] for line in lines)
        rows.append((name, arm, f"{seconds:.3g}", f"{memory:,}"))
    where = "GPU" if records[0].environment.get("gpus") else "process"
    header = ("backbone", "GC", "seconds per step", f"peak memory of the {where}, MiB")
    clock = "By the clock, whatever else the machine was doing: the recipe overhead compares the arms' times."
    return Table("Time and memory", header, tuple(rows), (clock, *annotation_notes(records)))


def annotation_notes(records: Sequence[RunRecord]) -> list[str]:
    """Return what was counted in the data, in sentences."""
    notes = []
    for record in records:
        path = Path(record.path) / "detection.json"
        if not path.exists():
            continue
        document = read_json(path)
        for split, counts in document["annotations"].items():
            odd = {key: count for key, count in counts.items() if key != "annotations"}
            problems = ", ".join(f"{count:,} {key}" for key, count in sorted(odd.items())) or "none odd"
            images, total = document["images"][split], counts.get("annotations", 0)
            part = "training" if split == "train" else "testing"
            notes.append(f"Annotations for {part} ({images:,} images used): {total:,} read, {problems}.")
    return list(dict.fromkeys(notes))


def figures(records: Sequence[RunRecord], scale_text: str = "") -> list[Picture]:
    """Return both arms on the same images, for the first networks."""
    pictures = []
    for cell in list(dict.fromkeys(record.cell for record in records))[:MOST_FIGURES]:
        runs = [record for record in records if record.cell == cell]
        seed = min(run.seed for run in runs)
        arms = sorted((run for run in runs if run.seed == seed), key=lambda run: not is_baseline(run))
        named = [("without GC" if is_baseline(run) else "with GC", load_examples(run)) for run in arms]
        if len(named) < 2 or not all(examples for _, examples in named):
            continue
        name = "examples-" + "".join(letter if letter.isalnum() else "-" for letter in cell)
        text = (
            f"{cell}, seed {seed}: detections of both arms in test images (score {SHOWN} or more). "
            "Dashed: annotated boxes."
        )
        pictures.append(Picture(name, side_by_side(named, scale_text), text))
    return pictures


def _mean_std(values: list[float]) -> str:
    if not values:
        return DASH
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{mean(values):.1f} ± {stdev(values):.1f}"
