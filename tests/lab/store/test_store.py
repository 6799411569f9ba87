"""Files: whole or not at all, and errors that name them."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
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


def test_equal_documents_have_equal_text(tmp_path):
    text = '{\n "a": "x",\n "b": 1\n}\n'
    files.write_json(tmp_path / "a.json", {"b": 1, "a": files.Path("x")})
    assert (tmp_path / "a.json").read_text() == files.json_text({"a": "x", "b": 1}) == text


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


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EDQUOT, "x"), True),
        (OSError(errno.EIO, "No space left"), False),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), True),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), True),
        (RuntimeError("No space left on device"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("No space left on device"), False),
    ],
    ids=repr,
)
def test_what_torch_and_the_system_say_of_a_full_disk(error, full):
    assert files.disk_full(error) is full
    assert ("no space left to write x: free" in str(files.write_error(files.Path("x"), error))) is full


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError("odd"), "OSError"), (ValueError("odd"), "ValueError"), (OSError(5, "bad"), "bad")],
)
def test_a_failed_write_gives_the_reason_it_has(error, reason):
    assert f"cannot write x ({reason}): check" in str(files.write_error(files.Path("x"), error))


def test_a_folder_that_cannot_be_created_is_one_line(tmp_path, monkeypatch):
    assert files.make_folder(tmp_path / "a" / "b").is_dir()
    assert files.make_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot create the folder .*file \(File exists\): choose"):
        files.make_folder(tmp_path / "file")
    with pytest.raises(UserError, match=r"cannot create the folder .*\(.*null.*\): choose another place"):
        files.make_folder(tmp_path / "a\0b")

    def full(*_):
        raise OSError(errno.ENOSPC, "x")

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(UserError, match=r"no space left to write .*new"):
        files.make_folder(tmp_path / "new")


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
    assert store.load(tmp_path, "toy") == []
    assert store.unfinished(tmp_path, "toy") == []
    with pytest.raises(UserError, match="holds no finished run"):
        store.load_run(tmp_path)
    store.discard(tmp_path / "nowhere")


def test_runs_of_one_study_or_of_all(tmp_path):
    for name in ("toy", "other"):
        run_pairs(replace(toy.experiment(), name=name, epochs=1), [OFF], [0], tmp_path)
    (tmp_path / "note.txt").write_text("no study")
    (tmp_path / "toy" / "begun").mkdir()
    assert [run.study for run in store.load(tmp_path)] == ["other", "toy"]
    (run,) = store.load(str(tmp_path), "toy")
    assert run.study == "toy"
    store.discard(run.path)
    assert [run.study for run in store.load(tmp_path)] == ["other"]


def test_iterations_are_those_that_the_experiment_observed(tmp_path):
    (record,) = run_pairs(replace(toy.experiment(), epochs=1), [OFF], [0], tmp_path)
    assert record.iterations() == []
    files.write_lines(record.path / "iterations.jsonl", [{"loss": 1.0}, {"loss": 0.5}])
    assert record.iterations() == [{"loss": 1.0}, {"loss": 0.5}]


def test_environment_tells_versions_but_no_names(tmp_path):
    environment = store.environment()
    assert environment["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["threads"] == torch.get_num_threads()
    import getpass
    import socket

    text = str(environment)
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4
    assert f"/{getpass.getuser()}/" not in text


def test_environment_tells_program_processes_and_variables(monkeypatch):
    def version(package):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr("sys.argv", ["/home/somebody/train.py", "--lr"])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    environment = store.environment()
    assert (environment["program"], environment["processes"]) == ("train.py", 1)
    assert environment["variables"]["OMP_NUM_THREADS"] == "3"
    assert "NVIDIA_TF32_OVERRIDE" not in environment["variables"]
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(importlib.metadata, "version", version)
    environment = store.environment()
    assert environment["processes"] == 4
    assert environment["versions"]["torch"] == torch.__version__  # of a package that is not installed


def test_the_processor_is_named_as_the_system_names_it(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(store, "Path", lambda path: cpuinfo)
    assert store._processor() == platform.processor()
    cpuinfo.write_text("processor\t: 0\n")
    assert store._processor() == platform.processor()
    cpuinfo.write_text("processor\t: 0\nmodel name\t: CPU: 8 cores\nmodel name\t: second\n")
    assert store._processor() == "CPU: 8 cores"


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


def test_a_finished_run_has_no_files_that_only_a_restart_needs(tmp_path):
    (record,) = run_pairs(replace(toy.experiment(), epochs=1), [OFF], [0], tmp_path)
    whole = sorted(p.name for p in record.path.iterdir())
    own = files.temporary_path(record.path / "x").name
    for name in ("checkpoint.pt", ".metrics.jsonl.0a1b2c3d.tmp", own):
        (record.path / name).write_text("x")
    store.finish(record.path, files.read_json(record.path / "result.json"), record.curves)
    assert sorted(p.name for p in record.path.iterdir()) == whole
    assert store.load_run(record.path) == record


def test_a_run_whose_process_is_alive_is_not_swept(tmp_path):
    (record,) = run_pairs(replace(toy.experiment(), epochs=1), [OFF], [0], tmp_path)
    whole = sorted(record.path.iterdir())
    own = files.temporary_path(record.path / "lock.0000")
    own.write_text("")
    with run_lock.held(record.path):
        present = sorted(record.path.iterdir())
        store.sweep(record.path)
        assert sorted(record.path.iterdir()) == present
    store.sweep(record.path)
    assert sorted(record.path.iterdir()) == whole


@pytest.mark.parametrize("own", [False, True])
def test_temporary_files_are_dropped_when_their_process_is_dead_or_silent(tmp_path, own):
    machine = process_identity.tag().partition("-")[0]
    parent = f"{machine}-{os.getppid()}-{process_identity.started(os.getppid())}"
    silent = f".a.json.0e15e0e5-{os.getpid()}-1.0a1b2c3d.tmp"
    mine = f".a.json.{process_identity.tag()}.0a1b2c3d.tmp"
    kept = {
        f".a.json.{parent}.0a1b2c3d.tmp",
        ".a.json.0e15e0e5-1-1.0a1b2c3d.tmp",
        ".a.tmp",
        "..tmp",
        "a.json",
    }
    for name in (*kept, silent, mine, f".a.json.{machine}-{os.getpid()}-1.0a1b2c3d.tmp"):
        (tmp_path / name).write_text("")
    os.utime(tmp_path / silent, (1, 1))
    files.drop_abandoned(tmp_path, own=own)
    assert {path.name for path in tmp_path.iterdir()} == (kept if own else kept | {mine})


def test_files_that_another_process_removes_first_are_no_error(tmp_path, monkeypatch):
    unlink = os.unlink

    def late(path, **options):
        unlink(path, **options)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    (tmp_path / ".a.json.0a1b2c3d.tmp").write_text("")
    monkeypatch.setattr(os, "unlink", late)
    files.drop_leftovers(tmp_path / "a.json")
    files.check_writable(tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.EIO, r"cannot write .*a\.json \(Input/output error\): check the disk"),
        (errno.EACCES, r"may not write .*a\.json: choose another folder with --out"),
        (errno.EROFS, r"cannot write .*a\.json \(Read-only file system\)"),
        (errno.EMFILE, r"cannot write .*a\.json \(Too many open files\)"),
    ],
)
def test_every_failed_write_is_one_line(tmp_path, monkeypatch, code, message):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    files.write_json(tmp_path / "a.json", {"old": 1})
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=message) as error:
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


def test_a_folder_that_cannot_be_written_is_named_before_the_work(tmp_path, monkeypatch):
    """Found by mutation: the message had the name of a temporary file."""
    with pytest.raises(UserError, match=r"cannot write .*/gone/a\.json \(No such file or directory\)"):
        files.check_writable(tmp_path / "gone" / "a.json")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    for call in ("fsync", "replace"):
        monkeypatch.setattr(os, call, fail)
        with pytest.raises(UserError, match=r"cannot write .*/a\.json \(Input/output error\)"):
            files.check_writable(tmp_path / "a.json")
        monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


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
