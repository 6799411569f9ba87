"""Files: whole or not at all, and errors that name them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess

import pytest
import torch
import toy

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF
from gradcent_lab.run.scheduler import run_pairs
from gradcent_lab.store import atomic_files as files
from gradcent_lab.store import integrity
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
