"""Stored runs and checkpoints: what was changed after it was written does not load."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import toy

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, ON, RecipeInfo, RunConfig
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


def stored(root, values, recipe=None, curves=None, **changes):
    """Store a run whose metric had these values, and return its folder."""
    config = RunConfig("measured", "cell", OFF, 0, "own", {}, recipe=recipe)
    folder = store.folder(root, config)
    store.begin(folder, config)
    result = {"best": values[0], "best_epoch": 1, "last": values[-1], "metric_name": "ms"}
    result |= {"higher_is_better": False, "initial_weights": "", "seconds": 1.0, **changes}
    epochs = [{"epoch": number, "eval_metric": value} for number, value in enumerate(values, start=1)]
    store.finish(folder, result, epochs if curves is None else curves)
    return folder


def test_whole_runs_load(runs):
    assert len(store.load(runs)) == 2


def test_runs_of_earlier_versions_load_without_the_times_of_the_whole_run(tmp_path):
    record = store.load_run(stored(tmp_path, [1.0]))
    assert (record.wall_seconds, record.processor_seconds) == (None, None)


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


@pytest.mark.parametrize("best_epoch", [-1, 5])
def test_a_best_epoch_that_no_line_has_is_noticed(runs, best_epoch):
    reseal(next(runs.glob("toy/*")), best_epoch=best_epoch)
    refused(runs, f"best_epoch is {best_epoch} of 4")


def test_epochs_in_another_order_are_noticed(runs):
    folder = next(runs.glob("toy/*"))
    one, two, *rest = read_lines(folder / "metrics.jsonl")
    write_lines(folder / "metrics.jsonl", [two, one, *rest])
    reseal(folder)
    refused(runs, r"metrics\.jsonl is damaged \(line 1\)")


@pytest.mark.parametrize("lost", ["files", "checksum"])
def test_a_result_without_its_checksums_is_refused(runs, lost):
    path = next(runs.glob("toy/*/result.json"))
    write_json(path, {key: value for key, value in read_json(path).items() if key != lost})
    refused(runs, "lacks its checksums")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"[1]", "not an object"), (b"{", "damaged"), (None, "checksum does not match")],
)
def test_a_damaged_result_is_refused(runs, content, words):
    path = next(runs.glob("toy/*/result.json"))
    path.write_bytes(json.dumps(read_json(path)).encode() if content is None else content)
    refused(runs, words)


def test_sealing_twice_changes_nothing(runs):
    folder = next(runs.glob("toy/*"))
    result = read_json(folder / "result.json")
    for name in (".hidden", "lock.0000", "checkpoint.pt", "failed.json"):
        (folder / name).write_text("x")
    (folder / "folder").mkdir()
    assert integrity.seal(folder, result, {}) == result


@pytest.mark.parametrize("name", ["config.json", "environment.json", "metrics.jsonl", "../outside"])
def test_the_seal_covers_the_files_of_the_run_and_no_others(runs, name):
    folder = next(runs.glob("toy/*"))
    (folder / "../outside").write_text("x")
    if name == "../outside":
        sealed = integrity.seal(folder, read_json(folder / "result.json"), {name: b"x"})
        words = "names a file outside its folder"
    else:
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        sealed = integrity.seal(folder, read_json(folder / "result.json"), {})
        (folder / name).write_bytes(content)
        words = f"lacks the checksum of {name}"
    write_json(folder / "result.json", sealed)
    refused(runs, words)


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
        ("result.json", "wall_seconds", "3"),
        ("result.json", "processor_seconds", None),
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


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("epoch", True, "epoch is of type bool"),
        ("eval_metric", "80", "eval_metric is of type str"),
        ("eval_metric", None, "eval_metric is of type NoneType"),
        ("eval_metric", 1.1e300, "eval_metric is beyond 1e300"),
    ],
)
def test_curves_of_wrong_types_are_named(runs, key, value, words):
    folder = next(runs.glob("toy/*"))
    lines = read_lines(folder / "metrics.jsonl")
    lines[0][key] = value
    write_lines(folder / "metrics.jsonl", lines)
    reseal(folder)
    refused(runs, rf"metrics\.jsonl is damaged \({words}\)")
    del lines[0][key]
    write_lines(folder / "metrics.jsonl", lines)
    reseal(folder)
    refused(runs, rf"metrics\.jsonl lacks '{key}'")


def test_numbers_up_to_1e300_load(runs):
    reseal(next(runs.glob("toy/*")), seconds=1e300)
    assert max(run.seconds for run in store.load(runs)) == 1e300


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"recipe": 1, "scale": "smoke", "is_paper": False, "switches": {}},
        {"recipe": "own", "scale": "smoke", "is_paper": 0, "switches": {}},
        {"recipe": "own", "scale": "smoke", "is_paper": False, "switches": []},
        {"recipe": "own", "scale": "smoke", "is_paper": False, "switches": {"layers": 3}},
    ],
    ids=str,
)
def test_a_recipe_of_wrong_types_is_named(tmp_path, document):
    recipe = RecipeInfo("own", "smoke", False, {"layers": "all"})
    folder = stored(tmp_path, [1.0], recipe=recipe)
    assert store.load_run(folder).recipe == recipe
    write_json(folder / "recipe.json", document)
    reseal(folder)
    refused(tmp_path, r"recipe\.json (is damaged|lacks)")


def test_a_recipe_that_the_seal_does_not_cover_is_not_read(tmp_path):
    folder = stored(tmp_path, [1.0])
    (folder / "recipe.json").write_text("{}")
    assert store.load_run(folder).recipe is None


def test_the_result_of_a_run_that_diverged_agrees_with_its_curves(tmp_path):
    folder = stored(tmp_path, [1.0, 3.0, math.nan], best=3.0, best_epoch=2)
    assert math.isnan(store.load_run(folder).last)
    reseal(folder, last=3.0)
    refused(tmp_path, r"last is 3\.0, metrics\.jsonl has nan")
    reseal(folder, last=math.nan, best=math.nan)
    refused(tmp_path, r"best is nan, metrics\.jsonl has 3\.0")


QUANTITIES = ("train_loss", "train_metric", "eval_loss", "lr", "steps", "seconds", "samples_per_second")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in QUANTITIES for value in ("x", [1], {"a": 1}, True)),
        *(("batches", value) for value in ([1], {"a": 1}, True)),  # it is text
    ],
)
def test_quantities_of_wrong_types_are_named(runs, key, value):
    """Tables and figures compute with them; found by replacing every field of a sealed record by other types."""
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
    folder = stored(tmp_path, [1.0], best_epoch=0, curves=[{"size": 3, "time": 1.5}])
    assert store.load_run(folder).curves == [{"size": 3, "time": 1.5}]
    reseal(folder, best_epoch=1)
    refused(tmp_path, "damaged|lacks")
