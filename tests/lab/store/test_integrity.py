"""Stored runs and checkpoints: what was changed after it was written does not load."""

from __future__ import annotations

import json
import shutil

import pytest
import toy

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.run import checkpoint
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.progress import SilentProgress
from gradcent_lab.run.scheduler import run_pairs
from gradcent_lab.store import integrity
from gradcent_lab.store import records as store
from gradcent_lab.store.atomic_files import Damaged, read_json, read_lines, write_json, write_lines

OPTIONS = Options(checkpoint_seconds=0.0)


class Stop(SilentProgress):
    """Interrupts every run after its second epoch."""

    def epoch_done(self, config, metrics):
        if metrics["epoch"] == 2:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A root with the two arms of one seed."""
    root = tmp_path_factory.mktemp("finished")
    run_pairs(toy.experiment(), [OFF, ON], [0], root)
    return root


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A root with a checkpoint of each arm."""
    root = tmp_path_factory.mktemp("interrupted")
    for arm in (OFF, ON):
        with pytest.raises(KeyboardInterrupt):
            run_pairs(toy.experiment(), [arm], [0], root, options=OPTIONS, progress=Stop())
    return root


@pytest.fixture
def runs(finished, tmp_path):
    """A copy of the finished runs, which a test may damage."""
    shutil.copytree(finished, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def checkpoints(interrupted, tmp_path):
    shutil.copytree(interrupted, tmp_path / "runs")
    return tmp_path / "runs"


def refused(root, words):
    with pytest.raises(UserError, match=words) as error:
        store.load(root)
    assert "\n" not in str(error.value)


def reseal(folder, **changes):
    """What someone does who knows about the checksums."""
    result = {k: v for k, v in read_json(folder / "result.json").items() if k not in ("files", "checksum")}
    write_json(folder / "result.json", integrity.seal(folder, {**result, **changes}, {}))


def test_whole_runs_load(runs):
    assert len(store.load(runs)) == 2


@pytest.mark.parametrize("name", ["config.json", "environment.json", "metrics.jsonl", "result.json"])
def test_a_changed_digit_is_noticed(runs, name):
    path = next(runs.glob(f"toy/*/{name}"))
    text = path.read_text()
    at = max(i for i, character in enumerate(text) if character.isdigit())
    path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
    refused(runs, "checksum does not match")


def test_a_better_result_with_a_right_checksum_disagrees_with_the_curves(runs):
    folder = next(runs.glob("toy/*"))
    reseal(folder, best=99.0)
    refused(runs, r"best is 99\.0, metrics\.jsonl has")


def test_a_dropped_last_line_with_right_checksums_is_noticed(runs):
    folder = next(runs.glob("toy/*"))
    write_lines(folder / "metrics.jsonl", read_lines(folder / "metrics.jsonl")[:-1])
    reseal(folder)
    refused(runs, "has 3 epochs instead of 4")


def test_an_edited_configuration_with_right_checksums_is_noticed(runs):
    folder = next(runs.glob("toy/*"))
    write_json(folder / "config.json", {**read_json(folder / "config.json"), "seed": 7})
    reseal(folder)
    refused(runs, "does not belong to this folder")


def test_the_other_arms_files_are_refused(runs):
    one, two = sorted(runs.glob("toy/*"))
    for name in ("config.json", "metrics.jsonl", "environment.json"):
        (one / name).write_bytes((two / name).read_bytes())
    refused(runs, "checksum does not match")
    reseal(one)
    refused(runs, "does not belong to this folder")


def test_a_configuration_cannot_name_another_folder(runs):
    from gradcent_lab.experiment.run_config import digest

    folder = next(runs.glob("toy/*"))
    config = {**read_json(folder / "config.json"), "study": "../../evil"}
    write_json(folder / "config.json", config)
    moved = folder.rename(folder.with_name(digest(config)))
    reseal(moved)
    refused(runs, "names another study than its folder")


@pytest.mark.parametrize("name", ["config.json", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("damage", ["missing", "not text", "empty", "list", "deep", "folder"])
def test_every_kind_of_damage_is_one_line(runs, name, damage):
    path = next(runs.glob(f"toy/*/{name}"))
    path.unlink()
    contents = {"not text": b"\xff\xfe{}", "empty": b"", "list": b"[1]", "deep": b"[" * 100_000}
    if damage in contents:
        path.write_bytes(contents[damage])
        reseal(path.parent)
    elif damage == "folder":
        path.mkdir()
    refused(runs, "damaged|missing|cannot read|lacks|0 epochs instead of 4")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("result.json", "best", "80"),
        ("result.json", "best", True),
        ("result.json", "best", 10**400),
        ("result.json", "best_epoch", None),
        ("result.json", "metric_name", "x" * 10_000),
        ("result.json", "seconds", []),
        ("result.json", "metrics", [1]),
        ("config.json", "arm", "on"),
        ("config.json", "arm", {"name": 1, "attach": None}),
        ("config.json", "seed", 1.5),
        ("config.json", "settings", {"epochs": "4"}),
        ("config.json", "numerics", {}),
        ("environment.json", "versions", 3),
    ],
)
def test_fields_of_wrong_types_are_named(runs, name, key, value):
    from gradcent_lab.experiment.run_config import digest

    folder = next(runs.glob("toy/*"))
    write_json(folder / name, {**read_json(folder / name), key: value})
    if name == "config.json":
        folder = folder.rename(folder.with_name(digest(read_json(folder / name))))
    reseal(folder, **({key: value} if name == "result.json" else {}))
    refused(runs, "damaged|lacks")


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, True], ids=str)
@pytest.mark.parametrize(
    "key",
    ["train_loss", "train_metric", "eval_loss", "lr", "steps", "batches", "seconds", "samples_per_second"],
)
def test_quantities_of_wrong_types_are_named(runs, key, value):
    """Tables and figures compute with them; found by replacing every field of a sealed record by other types."""
    if key == "batches" and value == "x":
        pytest.skip("it is text")
    path = next(runs.glob("toy/*/metrics.jsonl"))
    lines = read_lines(path)
    lines[1][key] = value
    write_lines(path, lines)
    reseal(path.parent)
    refused(runs, rf"metrics\.jsonl is damaged \({key} is of type")


def test_a_whole_checkpoint_continues(checkpoints):
    run_pairs(toy.experiment(), [OFF, ON], [0], checkpoints, options=OPTIONS)


def resume(root):
    with pytest.raises(Damaged, match="delete it, and the run starts again") as error:
        run_pairs(toy.experiment(), [OFF, ON], [0], root, options=OPTIONS)
    assert "\n" not in str(error.value)
    assert not list(root.glob("toy/*/result.json"))
    return str(error.value)


def test_a_flipped_bit_of_a_checkpoint_is_noticed(checkpoints):
    for path in checkpoints.glob("toy/*/checkpoint.pt"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    assert "checksum" in resume(checkpoints)


def test_the_other_arms_checkpoint_is_refused(checkpoints):
    one, two = checkpoints.glob("toy/*/checkpoint.pt")
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert "of another run" in resume(checkpoints)


@pytest.mark.parametrize(
    "position",
    [
        {"epoch": 99},
        {"epoch": -5},
        {"epoch": 4},
        {"epoch": "2"},
        {"step": -1},
        {"step": 10**9},
        {"curves": None},
        {"x": 1},
    ],
    ids=str,
)
def test_an_edited_position_with_a_right_checksum_is_refused(checkpoints, position):
    for path in checkpoints.glob("toy/*/checkpoint.pt"):
        document = checkpoint.read_document(path, path.parent.name)
        document["position"].update(position)
        with open(path, "wb") as stream:
            checkpoint.write_document(stream, document)
    resume(checkpoints)


@pytest.mark.parametrize("part", ["model", "optimizer", "scheduler", "processes", "position"])
def test_a_state_that_does_not_fit_is_damage(checkpoints, part):
    for path in checkpoints.glob("toy/*/checkpoint.pt"):
        document = checkpoint.read_document(path, path.parent.name)
        document[part] = [{}] if part == "processes" else {"x": json.dumps({})}
        with open(path, "wb") as stream:
            checkpoint.write_document(stream, document)
    resume(checkpoints)


def test_the_committed_runs_are_whole():
    from pathlib import Path

    assert len(store.load(Path(__file__).parents[3] / "results" / "studies")) >= 15


def test_rows_of_a_measurement_are_not_epochs(tmp_path):
    """Found by mutation: a run with best_epoch 0 has rows of its own, and one with best_epoch 1 is checked."""
    from gradcent_lab.experiment.run_config import RunConfig

    config = RunConfig("measured", "cell", OFF, 0, "own", {})
    folder = store.folder(tmp_path, config)
    store.begin(folder, config)
    result = {"best": 1.0, "last": 1.0, "metric_name": "ms", "higher_is_better": False}
    result |= {"initial_weights": "", "seconds": 1.0, "best_epoch": 0}
    store.finish(folder, result, [{"size": 3, "time": 1.5}])
    assert store.load_run(folder).curves == [{"size": 3, "time": 1.5}]
    reseal(folder, best_epoch=1)
    refused(tmp_path, "damaged|lacks")
