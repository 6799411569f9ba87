import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from detection_sets import annotation, coco_folder, real
from torch import nn
from torch.utils.data import TensorDataset

from gradcent_lab import recipes
from gradcent_lab.analysis.cells import by_metric
from gradcent_lab.analysis.findings import findings
from gradcent_lab.detection import coco, examples
from gradcent_lab.detection.data import DetectionSet
from gradcent_lab.detection.metrics import Evaluator, average_precision, encode
from gradcent_lab.detection.sources import open_source
from gradcent_lab.detection.training import build, schedule
from gradcent_lab.experiment.run_config import OFF, ON, RunConfig
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.experiment.study import Task
from gradcent_lab.recipes.coco import TABLE8, TABLE9
from gradcent_lab.recipes.presentation import detection_examples
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.progress import SilentProgress
from gradcent_lab.run.run_one import run_task
from gradcent_lab.run.scheduler import run_pairs, run_study

QUICK = Options(cpu=True)
TIMES = ("seconds", "samples_per_second", "seconds_per_step", "memory_mib")


def truth_and_guesses(root: Path, monkeypatch) -> tuple[DetectionSet, list[dict]]:
    """Random rectangles and guesses of them that are off by a little, wrong ones, and a crowd."""
    g = torch.Generator().manual_seed(2)

    def draw(low: float, high: float) -> float:
        return float(torch.rand((), generator=g) * (high - low) + low)

    objects, guesses = [], []
    for number in range(40):
        box = [draw(0, 20), draw(0, 12), draw(6, 16), draw(6, 14)]
        kind = {"category_id": 3 if number % 3 else 7, "iscrowd": int(number % 13 == 5)}
        objects.append(annotation(number + 1, 1 + number % 4, box, **kind))
        off = [v + draw(-1.5, 1.5) for v in box]
        mask = torch.zeros(30, 40, dtype=torch.bool)
        mask[
            max(0, round(off[1])) : round(off[1] + off[3]), max(0, round(off[0])) : round(off[0] + off[2])
        ] = True
        if number % 5:
            keys = {"image_id": 1 + number % 4, "category_id": 3 if number % 7 else 7}
            guesses.append({**keys, "bbox": off, "segmentation": encode(mask), "score": draw(0.05, 1)})
    data = coco_folder(root, monkeypatch, objects)
    return DetectionSet(open_source("coco", data, "test"), train=False, masks=True), guesses


def test_faster_coco_eval_and_pycocotools_agree(tmp_path, monkeypatch):
    pytest.importorskip("pycocotools")
    data, guesses = truth_and_guesses(tmp_path, monkeypatch)
    scores = [Evaluator(data, True).score(guesses, coco.library(name)) for name in coco.LIBRARIES]
    assert scores[0] == pytest.approx(scores[1], abs=1e-9)
    assert len(set(scores[0].values())) > 3, "numbers that differ, none of them trivial"
    assert all(1 < value < 99 for value in scores[0].values())


def test_average_precision_of_known_guesses(tmp_path, monkeypatch):
    objects = [annotation(1, 1, [2.0, 3.0, 10.0, 8.0]), annotation(2, 2, [5.0, 5.0, 10.0, 10.0])]
    source = open_source("coco", coco_folder(tmp_path, monkeypatch, objects), "test")
    truth = DetectionSet(source, train=False, masks=True).truth
    right = [{"image_id": a["image_id"], "category_id": 3, "bbox": a["bbox"], "score": 0.9} for a in objects]
    assert average_precision(truth, right, "bbox") == pytest.approx([100, 100, 100])
    assert average_precision(truth, [], "bbox") == [0, 0, 0]
    # one of two found at IoU 8/10: precision 1 up to recall 1/2, that is at 51 of 101 points, up to IoU 0.8
    half = [{**right[1], "bbox": [5.0, 5.0, 10.0, 8.0]}]
    each = 100 * 51 / 101
    assert average_precision(truth, half, "bbox") == pytest.approx([each * 7 / 10, each, each])


def test_missing_library_names_the_pip_line(monkeypatch):
    coco.library.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(coco.UserError, match="pip install faster-coco-eval"):
        coco.library()


def test_schedule_warms_up_and_drops():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.9)
    rates = schedule([8, 11], 100, 1 / 3)(optimizer, 50)
    seen = []
    for _ in range(600):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rates.step()
    assert seen[0] == pytest.approx(0.3)
    assert seen[50] == pytest.approx(0.6)
    assert seen[100] == seen[399] == pytest.approx(0.9)
    assert seen[400] == seen[549] == pytest.approx(0.09)
    assert seen[550] == pytest.approx(0.009)


def test_learning_rate_grows_with_the_batch():
    root = real("penn-fudan")
    for images in ("2", "8"):
        settings = TABLE9.study("smoke", {"images": images}).cells[0].settings
        optimizer = build(settings, root).optimizer([nn.Parameter(torch.zeros(1))])
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * int(images) / 16)


@pytest.mark.parametrize("recipe", [TABLE8, TABLE9])
def test_recipes_have_the_papers_cells_and_settings(recipe):
    from gradcent_lab.analysis import paper_claims as claims

    study = recipe.study("paper")
    printed = {c.cell.rpartition(" ")[0] for c in claims.paired_claims() if c.table == recipe.paper_table}
    assert {cell.name for cell in study.cells} == printed
    for cell in study.cells:
        gn = "GN" in cell.name
        assert cell.settings["epochs"] == (24 if gn else 12)
        assert cell.settings["schedule"]["milestones"] == ([16, 22] if gn else [8, 11])
        assert cell.settings["clip"] == 35.0
    assert recipe.study("paper", {"clip": "none"}).cells[0].settings["clip"] is None


def linear_experiment(clip: float | None) -> Experiment:
    x = torch.arange(12.0).reshape(4, 3)
    return Experiment(
        name="linear",
        model=lambda: nn.Linear(3, 1),
        train_data=TensorDataset(x, 50 * x.sum(1, keepdim=True)),
        eval_data=TensorDataset(x, x.sum(1, keepdim=True)),
        loss=nn.functional.mse_loss,
        metric=lambda output, target: (output - target).abs().mean(1),
        higher_is_better=False,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.5),
        epochs=1,
        batch_size=4,
        clip=clip,
        closing=lambda model, folder: (folder / "weights.json").write_text(
            json.dumps([p.tolist() for p in model.parameters()])
        ),
    )


def test_clipping_comes_before_centralizing(tmp_path):
    made = linear_experiment(clip=1.0)
    records = run_pairs(made, [OFF, ON], [0], tmp_path, options=QUICK)
    from gradcent_lab.data import random_streams

    random_streams.seed_everything(0, "weights")
    first = nn.Linear(3, 1)
    before = [p.detach().clone() for p in first.parameters()]
    loss = nn.functional.mse_loss(first(made.train_data.tensors[0]), made.train_data.tensors[1])
    gradients = torch.autograd.grad(loss, list(first.parameters()))
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    assert norm > 100
    for record in records:
        weight, bias = (torch.tensor(v) for v in json.loads((record.path / "weights.json").read_text()))
        clipped = [g / norm for g in gradients]
        if record.arm == "on":
            clipped[0] = clipped[0] - clipped[0].mean()  # clip, then centralize
        torch.testing.assert_close(weight, before[0] - 0.5 * clipped[0])
        torch.testing.assert_close(bias, before[1] - 0.5 * clipped[1])


def quick_study(epochs: int = 1, train: int = 4):
    """Table 9's first cell with a few more steps than smoke has."""
    study = TABLE9.study("smoke")
    cell = study.cells[0]
    settings = {
        **cell.settings,
        "epochs": epochs,
        "data": {**cell.settings["data"], "train": train, "eval": 3},
    }
    return replace(study, cells=(replace(cell, settings=settings),), arms=(ON,))


def plain(record) -> list[dict]:
    return [{k: v for k, v in line.items() if k not in TIMES} for line in record.curves]


def test_interrupted_training_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    root = real("penn-fudan")
    study = quick_study(epochs=2, train=6)
    (whole,) = run_study(study, tmp_path / "whole", data=root, options=QUICK)

    from gradcent_lab.detection import training

    calls = []

    def breaks(losses, targets):
        calls.append(1)
        if len(calls) == 5:  # the second step of the second epoch
            raise KeyboardInterrupt
        return total(losses, targets)

    total = training.total
    monkeypatch.setattr(training, "total", breaks)
    each = Options(cpu=True, checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "cut", data=root, options=each)
    (resumed,) = run_study(study, tmp_path / "cut", data=root, options=each)
    assert len(calls) == 7, "four steps before the cut, the cut one, and only two after it"
    assert plain(resumed) == plain(whole)
    kept = [json.loads((run.path / "detection.json").read_text()) for run in (whole, resumed)]
    assert kept[0]["final_weights"] == kept[1]["final_weights"]
    assert kept[0]["images"] == {"train": 6, "test": 3}


@pytest.mark.slow
def test_smoke_of_both_tables_and_their_report(tmp_path):
    root = real("penn-fudan")
    real("weights")
    from gradcent_lab.report.html import write_report
    from gradcent_lab.report.sections import sections

    records = []
    for recipe in (TABLE8, TABLE9):
        study = recipe.study("smoke")
        made = run_study(study, tmp_path, data=root, options=QUICK)
        assert len(made) == 2 * len(study.cells)
        records += made
    assert {len(record.metrics) for record in records} == {3, 6}
    assert all(line["memory_mib"] > 0 for record in records for line in record.curves)
    found = [
        finding
        for recipe in (TABLE8, TABLE9)
        for finding in findings([r for r in records if r.study == recipe.name], table=recipe.paper_table)
    ]
    assert sum(finding.comparison is not None for finding in found) == 4 * 3 + 7 * 6
    assert all(finding.claim is not None for finding in found)
    few = [record for record in records if record.cell == "R50"]  # drawing all 54 pairs takes half a minute
    shown = sections(few, recipes.all_recipes(), tmp_path)
    page = write_report(shown, tmp_path / "report.html", title="smoke").read_text()
    assert "Table 9 in the paper" in page
    assert "w/o GC" in page
    assert "(34.1)" in page, "the paper's APm of R50 stands beside ours"
    assert page.count("detections of both arms") >= 2
    assert "each line&#x27;s metric at the last epoch" in page


def test_a_run_of_several_metrics_becomes_a_record_of_each(tmp_path):
    root = real("penn-fudan")
    (record,) = run_study(quick_study(), tmp_path, data=root, options=QUICK)
    parts = by_metric(record)
    assert [part.cell for part in parts] == [
        "R50 APb", "R50 APb.5", "R50 APb.75", "R50 APm", "R50 APm.5", "R50 APm.75",
    ]  # fmt: skip
    assert [part.last for part in parts] == [record.curves[-1][name] for name in record.metrics]


def test_examples_draw_masks_where_they_are(tmp_path):
    mask = torch.zeros(30, 40, dtype=torch.bool)
    mask[5:25, 10:20] = True
    code = encode(mask)
    found = {"box": [10, 5, 10, 20], "score": 0.9, "name": "person"}
    found["mask"] = {"size": list(code["size"]), "counts": code["counts"].decode()}
    picture = examples._picture(torch.zeros(3, 30, 40), 1.0)
    example = {"file_name": "a.jpg", "picture": picture, "truth": [[9, 4, 21, 26]], "found": [found]}
    figure = detection_examples.side_by_side(
        [("without GC", [example]), ("with GC", [{**example, "found": []}])]
    )
    shown = [axis.images[0].get_array() for axis in figure.axes]
    assert shown[0][15, 15].max() > 0.3
    assert shown[0][15, 30].max() < 0.05
    assert shown[1].max() < 0.05
    assert figure.axes[1].get_xlabel() == "nothing found"


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_under_accelerate(tmp_path):
    root = real("penn-fudan")
    script = tmp_path / "launched.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        "sys.path[:0] = sys.argv[3:5]\n"
        "from test_detection_training import quick_study, QUICK\n"
        "from gradcent_lab.run.scheduler import run_study\n"
        "run_study(quick_study(), sys.argv[1], data=Path(sys.argv[2]), options=QUICK)\n"
    )
    # --cpu would ask for MPI; without a GPU the lab itself turns to the CPU
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_cpu_threads_per_process", "1", "--main_process_port", "0"]
    command += [str(script), str(tmp_path / "runs"), str(root)]
    command += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    config = RunConfig("table9", "R50", ON, 0, "smoke", quick_study().cells[0].settings)
    record = run_task(Task(config, lambda: None), tmp_path / "runs", QUICK, SilentProgress())
    assert record is not None, "the run is finished, so it is read and not run again"
    assert record.environment["processes"] == 2
    assert set(record.metrics) <= set(record.curves[-1])
