"""Locks: one holder at a time, whatever dies when."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys

import pytest

from gradcent_lab.store import run_lock as locks


def test_second_claim_is_refused_until_release(tmp_path):
    first = locks.acquire(tmp_path)
    assert first is not None
    assert locks.acquire(tmp_path) is None
    assert locks.is_held(tmp_path)
    first.release()
    assert not locks.is_held(tmp_path)
    second = locks.acquire(tmp_path)
    assert second is not None
    second.release()


def test_lock_of_a_killed_process_is_free_at_once(tmp_path):
    code = (
        "import os, signal, sys, pathlib\n"
        "from gradcent_lab.store import run_lock as locks\n"
        "assert locks.acquire(pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert not locks.is_held(tmp_path)
    lock = locks.acquire(tmp_path)
    assert lock is not None
    lock.release()


def test_lock_of_another_machine_counts_until_its_heartbeat_stops(tmp_path):
    other = {"host": "elsewhere", "boot": "x", "pid": os.getpid(), "started": "1", "token": "t"}
    path = tmp_path / "lock.0003"
    path.write_text(json.dumps(other))
    assert locks.acquire(tmp_path) is None
    now = path.stat().st_mtime
    os.utime(path, (now, now - locks.STALE - 1))
    lock = locks.acquire(tmp_path)
    assert lock is not None
    assert lock.path.name == "lock.0004"
    lock.release()


def test_half_written_lock_is_respected_while_fresh(tmp_path):
    (tmp_path / "lock.0000").write_text("")
    assert locks.is_held(tmp_path)


def test_holder_notices_that_it_was_taken_over(tmp_path):
    lock = locks.acquire(tmp_path)
    assert lock is not None
    lock.check()
    (tmp_path / "lock.0001").write_text("{}")
    with pytest.raises(locks.LostLock):
        lock.check()
    lock.release()


def test_heartbeat_touches_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT", 0.01)
    lock = locks.acquire(tmp_path)
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
    results.put(locks.acquire(folder) is not None)
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
    lock = locks.acquire(tmp_path)
    assert lock is not None
    assert locks.acquire(tmp_path) is None
    lock.release()
