"""Files: whole or not at all, and errors that name them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from dataclasses import replace

import pytest
import torch
import toy

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, RecipeInfo
from gradcent_lab.run.scheduler import run_pairs
from gradcent_lab.store import atomic_files as files
from gradcent_lab.store import integrity, process_identity, run_lock
from gradcent_lab.store import records as store


def test_failed_write_leaves_the_old_file_and_no_rest(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"x": 1})

    def fail(stream):
        stream.write(b"half")
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        files.write_atomically(path, fail)
    assert files.read_json(path) == {"x": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"no space left to write .*result") as error:
        files.write_json(tmp_path / "result.json", {})
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a small file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_study_on_a_disk_that_fills_up_goes_on_when_there_is_room(tiny_disk):
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(36 * 1024))
    with pytest.raises(UserError, match="no space left"):
        run_pairs(toy.experiment(), [OFF], range(8), tiny_disk / "runs")
    done = store.load(tiny_disk / "runs")
    assert not list(tiny_disk.rglob("*.tmp"))
    assert len(done) < 8
    ballast.unlink()
    assert len(run_pairs(toy.experiment(), [OFF], range(len(done) + 1), tiny_disk / "runs")) == len(done) + 1


def test_full_disk_while_torch_saves(tiny_disk):
    with pytest.raises(UserError, match="no space left"):
        files.write_atomically(
            tiny_disk / "checkpoint.pt", lambda stream: torch.save(torch.zeros(100_000), stream)
        )
    assert list(tiny_disk.iterdir()) == []


def test_damaged_files_are_named(tmp_path):
    (record,) = run_pairs(toy.experiment(), [OFF], [0], tmp_path)
    (record.path / "metrics.jsonl").write_text('{"epoch": 1\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged"):
        store.load(tmp_path)
    (record.path / "metrics.jsonl").write_text("")
    (record.path / "result.json").write_text("{}")
    with pytest.raises(UserError, match="lacks its checksums"):
        store.load(tmp_path)
    files.write_json(record.path / "result.json", integrity.seal(record.path, {}, {}))
    with pytest.raises(UserError, match="lacks 'best'"):
        store.load(tmp_path)


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        store.load(tmp_path / "nowhere")
    assert store.load(tmp_path) == []
    assert store.unfinished(tmp_path, "toy") == []


def test_environment_tells_versions_but_no_names(tmp_path):
    environment = store.environment()
    assert environment["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["threads"] == torch.get_num_threads()
    import getpass
    import socket

    text = str(environment)
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4
    assert f"/{getpass.getuser()}/" not in text


def test_what_a_process_killed_after_its_result_left_is_swept(tmp_path):
    (record,) = run_pairs(toy.experiment(), [OFF], [0], tmp_path)
    whole = sorted(p.name for p in record.path.iterdir())
    (record.path / "checkpoint.pt").write_bytes(b"x")
    # found by the fault campaign: the flush after the rename of result.json failed, and the run is finished
    (record.path / "failed.json").write_text("{}")
    dead = {**run_lock._holder(), "started": "1"}
    (record.path / "lock.0000").write_text(files.json_text(dead))
    (record.path / ".result.json.0a1b2c3d.tmp").write_text("half")
    pid_of_nobody = ".".join(
        ["", "lock", "0000", process_identity.tag().rpartition("-")[0] + "-1", "0a1b", "tmp"]
    )
    (record.path / pid_of_nobody).write_text("")
    run_pairs(toy.experiment(), [OFF], [0], tmp_path)
    assert sorted(p.name for p in record.path.iterdir()) == whole


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE])
def test_every_failed_write_is_one_line(tmp_path, monkeypatch, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    files.write_json(tmp_path / "a.json", {"old": 1})
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=r"write .*a\.json") as error:
        files.write_json(tmp_path / "a.json", {"new": 1})
    assert "\n" not in str(error.value)
    assert files.read_json(tmp_path / "a.json") == {"old": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_report_sweeps_what_a_killed_report_left(tmp_path):
    """Found by the kill campaign: a temporary file of a table stayed in the report's folder."""
    import synthetic_records as synthetic

    from gradcent_lab.analysis.findings import findings
    from gradcent_lab.report.section import Section
    from gradcent_lab.report.write import write_section

    dead = process_identity.tag().rpartition("-")[0] + "-1"
    (tmp_path / f".table.csv.{dead}.904c0768.tmp").write_text("half")
    alive = tmp_path / f".table.csv.{process_identity.tag()}.904c0768.tmp"
    alive.write_text("half")
    runs = synthetic.study(n=2, epochs=1)
    write_section(Section(runs, findings(runs), title="x"), tmp_path)
    assert list(tmp_path.glob(".*.tmp")) == [alive]


@pytest.mark.parametrize("code", [None, errno.EINVAL, errno.EIO])
def test_the_folder_is_flushed_after_the_rename(tmp_path, monkeypatch, code):
    """Without it a rename may not survive a power failure; some file systems cannot do it (EINVAL)."""
    events = []
    fsync, replace = os.fsync, os.replace

    def flush(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("flush folder" if is_folder else "flush file")
        if is_folder and code is not None:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    def rename(*paths):
        events.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", rename)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    if code == errno.EIO:
        with pytest.raises(UserError, match=r"cannot write .*a\.json \(Input/output error\)"):
            files.write_json(tmp_path / "a.json", {"new": 1})
    else:
        files.write_json(tmp_path / "a.json", {"new": 1})
    assert events == ["flush file", "rename", "flush folder"]
    assert files.read_json(tmp_path / "a.json") == {"new": 1}
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_temporary_file_that_could_not_be_removed_is_swept_at_the_end_of_the_run(tmp_path, monkeypatch):
    """Found by the fault campaign: the removal of a lock's temporary file failed once, and the file stayed."""
    unlink, failed = os.unlink, []

    def fail_once(path, **options):
        if ".lock." in os.fspath(path) and not failed:
            failed.append(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", fail_once)
    (record,) = run_pairs(toy.experiment(), [OFF], [0], tmp_path)
    assert failed
    assert not [p.name for p in record.path.iterdir() if p.name.startswith((".", "lock."))]


def test_a_writable_folder_is_left_as_it_was(tmp_path):
    (tmp_path / "a.json").write_text("old")
    files.check_writable(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_only_errors_about_files_of_the_run_are_reworded(tmp_path):
    def fail(*names):
        with files.storage_errors(tmp_path / "run"):
            raise OSError(errno.EIO, "Input/output error", *names)

    with pytest.raises(UserError, match=r"cannot write .*run/a\.json \(Input/output error\)"):
        fail(str(tmp_path / "run" / "a.json"))
    for names in ([], [str(tmp_path / "elsewhere" / "image.png")]):
        with pytest.raises(OSError, match="Input/output error") as error:
            fail(*names)
        assert not isinstance(error.value, UserError)


def test_unfinished_runs_are_those_without_a_result(tmp_path):
    (record,) = run_pairs(toy.experiment(), [OFF], [0], tmp_path)
    assert store.unfinished(tmp_path, "toy") == []
    assert store.unfinished(tmp_path, "none") == []
    begun = tmp_path / "toy" / "begun"
    begun.mkdir()
    assert store.unfinished(tmp_path, "toy") == []
    shutil.copy(record.path / "config.json", begun)
    assert store.unfinished(tmp_path, "toy") == [begun]


def test_paper_scale_is_the_recipes_answer_where_there_is_one(tmp_path):
    (record,) = run_pairs(toy.experiment(), [OFF], [0], tmp_path)
    assert not record.is_paper_scale
    assert replace(record, scale="paper").is_paper_scale
    for is_paper in (False, True):
        recipe = RecipeInfo("toy", "a scale", is_paper, {})
        assert replace(record, scale="other", recipe=recipe).is_paper_scale is is_paper
