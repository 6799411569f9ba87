"""Locks: one holder at a time, whatever dies when."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys

import pytest

from gradcent_lab.errors import UserError
from gradcent_lab.store import run_lock


def test_second_claim_is_refused_until_release(tmp_path):
    first = run_lock.acquire(tmp_path)
    assert first is not None
    assert run_lock.acquire(tmp_path) is None
    assert run_lock.is_held(tmp_path)
    first.release()
    assert not run_lock.is_held(tmp_path)
    second = run_lock.acquire(tmp_path)
    assert second is not None
    second.release()


def test_lock_of_a_killed_process_is_free_at_once(tmp_path):
    code = (
        "import os, signal, sys, pathlib\n"
        "from gradcent_lab.store import run_lock\n"
        "assert run_lock.acquire(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert not run_lock.is_held(tmp_path)
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    lock.release()


def test_a_process_that_fails_without_a_release_ends_and_its_lock_is_free(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from gradcent_lab.store import run_lock\n"
        "assert run_lock.acquire(pathlib.Path(sys.argv[1]))\n"
        "sys.exit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60).returncode == 3
    assert (tmp_path / "lock.0000").exists()
    assert not run_lock.is_held(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_lock_that_cannot_be_marked_as_released_is_removed(tmp_path, monkeypatch, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    with run_lock.held(tmp_path) as lock:
        assert lock is not None
        with run_lock.held(tmp_path) as second:
            assert second is None
        monkeypatch.setattr(os, "replace", fail)
    assert list(tmp_path.iterdir()) == []
    lock.release()  # a second time there is nothing to do


def test_lock_of_another_machine_counts_until_its_heartbeat_stops(tmp_path):
    other = {"host": "elsewhere", "boot": "x", "pid": os.getpid(), "started": "1", "token": "t"}
    path = tmp_path / "lock.0003"
    path.write_text(json.dumps(other))
    assert run_lock.acquire(tmp_path) is None
    assert list(tmp_path.iterdir()) == [path]
    now = path.stat().st_mtime
    os.utime(path, (now, now - run_lock.STALE - 1))
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    assert lock.path.name == "lock.0004"
    lock.release()


def test_half_written_lock_is_respected_while_fresh(tmp_path):
    (tmp_path / "lock.0000").write_text("")
    assert run_lock.is_held(tmp_path)


def test_holder_notices_that_it_was_taken_over(tmp_path):
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    lock.check()
    (tmp_path / "lock.0001").write_text("{}")
    with pytest.raises(run_lock.LostLock):
        lock.check()
    lock.release()


def test_heartbeat_touches_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "HEARTBEAT", 0.01)
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    os.utime(lock.path, (1, 1))
    for _ in range(200):
        if lock.path.stat().st_mtime > 1:
            break
        lock._stop.wait(0.01)
    assert lock.path.stat().st_mtime > 1
    lock.release()


def _race(folder, start, results):
    start.wait()
    results.put(run_lock.acquire(folder) is not None)
    start.wait()


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_claims_exactly_one_wins(tmp_path, stale):
    if stale:
        dead = {"host": "elsewhere", "boot": "x", "pid": 1, "started": "1", "token": "t"}
        path = tmp_path / "lock.0000"
        path.write_text(json.dumps(dead))
        os.utime(path, (1, 1))
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(6), context.Queue()
    racers = [context.Process(target=_race, args=(tmp_path, start, results)) for _ in range(6)]
    for racer in racers:
        racer.start()
    won = [results.get(timeout=30) for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(won) == 1


def test_no_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    assert run_lock.acquire(tmp_path) is None
    lock.release()


@pytest.mark.parametrize("error", [FileExistsError(), OSError("no links here")], ids=repr)
def test_another_process_may_be_faster(tmp_path, monkeypatch, error):
    def refuse(temporary, path):
        path.write_text("")
        raise error

    monkeypatch.setattr(os, "link", refuse)
    assert run_lock.acquire(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["lock.0000"]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"host": 3}',
        b'{"host": "a", "pid": "x"}',
        b"[" * 50_000,
        b'{"released": 1}',
        json.dumps({**run_lock._holder(), "pid": "x"}).encode(),
        json.dumps({"host": run_lock._holder()["host"], "boot": run_lock._holder()["boot"]}).encode(),
    ],
    ids=range(10),
)
def test_a_damaged_or_foreign_lock_counts_as_held_until_it_is_stale(tmp_path, content):
    path = tmp_path / "lock.0000"
    path.write_bytes(content)
    assert run_lock.acquire(tmp_path) is None
    os.utime(path, (1, 1))
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    lock.release()


def test_locks_compare_as_numbers(tmp_path):
    for number in (9999, 10000):
        (tmp_path / f"lock.{number}").write_text('{"released": true}')
    (tmp_path / "lock.old").write_text("somebody's note")
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    assert lock.path.name == "lock.10001"
    lock.check()
    assert run_lock.acquire(tmp_path) is None
    lock.release()


def test_the_last_number_of_a_lock_is_refused(tmp_path):
    (tmp_path / "lock.999999999999").write_text('{"released": true}')
    with pytest.raises(UserError, match=r"lock\.9+ has the highest number .* delete it if"):
        run_lock.acquire(tmp_path)


def test_a_lock_that_disappears_while_it_is_read_is_free(tmp_path, monkeypatch):
    (tmp_path / "lock.0000").write_text(json.dumps(run_lock._holder()))
    assert run_lock.is_held(tmp_path)

    def gone(path):
        raise FileNotFoundError

    monkeypatch.setattr(run_lock.Path, "read_bytes", gone)
    assert not run_lock.is_held(tmp_path)
    monkeypatch.undo()
    (tmp_path / "lock.0001").write_text("")
    assert run_lock.is_held(tmp_path)
    monkeypatch.setattr(run_lock, "_now", gone)
    assert not run_lock.is_held(tmp_path)


def test_a_folder_named_like_a_lock_belongs_to_nobody(tmp_path):
    (tmp_path / "lock.0003").mkdir()
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    assert lock.path.name == "lock.0004"
    lock.release()


def test_lock_of_a_reused_pid_is_free(tmp_path):
    me = run_lock._holder()
    (tmp_path / "lock.0000").write_text(json.dumps({**me, "started": "1"}))
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    lock.release()


def test_a_lock_from_the_future_is_stale_after_being_watched(tmp_path, monkeypatch):
    """A machine whose clock is a day ahead held the lock and died."""
    path = tmp_path / "lock.0000"
    path.write_text(json.dumps({"host": "elsewhere", "boot": "x", "pid": 1, "started": "1"}))
    ahead = path.stat().st_mtime + 86400
    os.utime(path, (ahead, ahead))
    clock = 1000.0
    monkeypatch.setattr(run_lock.time, "monotonic", lambda: clock)
    assert run_lock.is_held(tmp_path)
    clock += run_lock.STALE - 1
    assert run_lock.is_held(tmp_path)
    os.utime(path, (ahead + 1, ahead + 1))  # its holder is alive
    clock += 2
    assert run_lock.is_held(tmp_path)
    clock += run_lock.STALE - 1
    assert run_lock.is_held(tmp_path)
    clock += 2
    assert not run_lock.is_held(tmp_path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.EIO, r"cannot lock .* \(Input/output error\)"),
        (errno.ENOSPC, r"no space left to write .*lock: free some space"),
        (errno.EACCES, r"may not write .*lock: choose another folder"),
    ],
)
def test_lock_errors_are_one_line(tmp_path, monkeypatch, code, message):
    def broken(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "listdir", broken)
    for ask in (run_lock.acquire, run_lock.is_held):
        with pytest.raises(UserError, match=message):
            ask(tmp_path)


def test_a_lock_on_a_full_disk_is_not_created(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(UserError, match="no space left"):
        run_lock.acquire(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_removed_folder_has_no_lock(tmp_path):
    lock = run_lock.acquire(tmp_path)
    assert lock is not None
    lock.path.unlink()
    with pytest.raises(run_lock.LostLock):
        lock.check()
    lock.release()
    assert run_lock.acquire(tmp_path / "gone") is None
