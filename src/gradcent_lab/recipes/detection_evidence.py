"""The committed evidence of detection, from runs and their repetition: `results/detection/`.

    gradcent run table9 --scale small --cell R50 --seeds 1 --out runs     (and the same with --out again)
    gradcent run unet --scale small --out runs
    python -m gradcent_lab.recipes.detection_evidence runs again results/detection

It evaluates the untrained detector, compares the two sets of runs bit by bit and writes numbers, tables and the
figure of both arms. The tables of docs/detection.md are these, and a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gradcent_lab import store
from gradcent_lab.analysis.findings import findings
from gradcent_lab.data import data_root
from gradcent_lab.data.batches import Feed
from gradcent_lab.data.random_streams import seed_everything
from gradcent_lab.detection.training import build
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.weights import weights_hash
from gradcent_lab.recipes.presentation import detection, wrong_axis
from gradcent_lab.report.tables import Table, findings_table
from gradcent_lab.run.accelerator import deterministic
from gradcent_lab.store.atomic_files import make_folder, read_json, write_atomically, write_json
from gradcent_lab.store.records import RunRecord

# what may differ between equal runs
CLOCK = frozenset({"seconds", "samples_per_second", "seconds_per_step", "memory_mib"})


class _Alone:
    """What the evaluator asks of accelerate, for one process."""

    device = torch.device("cpu")
    num_processes = 1


def untrained(record: RunRecord) -> dict[str, float]:
    """Return the metrics of the weights a run began with; they are checked to be those."""
    experiment = build(record.config["settings"], data_root())
    seed_everything(record.seed, "weights")
    model = experiment.model().eval()
    if weights_hash(model) != record.initial_weights:
        raise UserError(f"{record.path} began with other weights than this code builds: run it again")
    feed = Feed(experiment.eval_data, 1, seed=record.seed, train=False)
    assert experiment.evaluate is not None
    with torch.no_grad(), deterministic():
        return dict(experiment.evaluate(model, feed.epoch(0), _Alone()))


def same_bits(first: RunRecord, second: RunRecord) -> bool:
    """Whether two runs agree in every number of every epoch and in every bit of their final weights."""
    curves = [
        [{key: value for key, value in line.items() if key not in CLOCK} for line in record.curves]
        for record in (first, second)
    ]
    final = [read_json(record.path / "detection.json")["final_weights"] for record in (first, second)]
    return curves[0] == curves[1] and final[0] == final[1]


def detection_evidence(runs: Path, again: Path, cell: str = "R50") -> dict[str, Any]:
    """Return the numbers of the detectors' runs as JSON values."""
    records = [record for record in store.load(runs, "table9") if record.cell == cell]
    twins = {record.path.name: record for record in store.load(again, "table9")}
    if not records:
        raise UserError(f"{runs} has no runs of table9 {cell}")
    before = untrained(records[0])
    first = records[0]
    settings = first.config["settings"]
    steps = settings["data"]["train"] // settings["batch_size"] * settings["epochs"]
    arms = []
    for record in records:
        twin = twins.get(record.path.name)
        arms.append(
            {
                "arm": record.arm,
                "seed": record.seed,
                "last": {name: record.curves[-1][name] for name in record.metrics},
                "final_weights": read_json(record.path / "detection.json")["final_weights"],
                "repeated": same_bits(record, twin) if twin else None,
                "curve": [line["eval_metric"] for line in record.curves],
            }
        )
    return {
        "study": "table9",
        "scale": first.scale,
        "cell": cell,
        "steps": steps,
        "initial_weights": first.initial_weights,
        "untrained": before,
        "arms": arms,
        "environment": first.environment,
    }


def detection_table(evidence: dict[str, Any]) -> Table:
    """Return the untrained detector beside the trained ones."""
    names = tuple(evidence["untrained"])
    rows = [("untrained", "", *(f"{evidence['untrained'][name]:.1f}" for name in names), "")]
    for arm in evidence["arms"]:
        word = {True: "every bit", False: "no", None: "not repeated"}[arm["repeated"]]
        seed = str(arm["seed"])
        rows.append((f"GC {arm['arm']}", seed, *(f"{arm['last'][name]:.1f}" for name in names), word))
    header = ("", "seed", *names, "the same when repeated")
    return Table(f"Mask R-CNN on Penn-Fudan, {evidence['steps']} steps on the CPU", header, tuple(rows))


def main(arguments: Sequence[str]) -> int:
    """Write the evidence."""
    runs, again, out = map(Path, arguments)
    make_folder(out)
    numbers = detection_evidence(runs, again)
    write_json(out / "evidence.json", numbers)
    tables = [detection_table(numbers)]
    records = [record for record in store.load(runs, "table9") if record.cell == numbers["cell"]]
    words = "Penn-Fudan, ResNet-18 with FPN at 128 pixels; not the paper's scale"
    for picture in detection.figures(records, words):
        # photographs: a tenth of the size of a PNG
        picture.figure.savefig(out / "examples.jpg", dpi=110, pil_kwargs={"quality": 82})
    people = store.load(runs, "unet")
    if people:
        tables += [findings_table(findings(people)), *wrong_axis.tables(people)]
    text = "\n".join(table.markdown() for table in tables)
    write_atomically(out / "tables.md", lambda stream: _put(stream, text))
    return 0


def _put(stream: Any, text: str) -> None:
    stream.write(text.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
