"""Campaign 4: several processes and one run: races, dead holders, reused pids, other hosts, skewed clocks, lost folders.

Each trial prepares a folder with one kind of lock, lets several processes try to take it, and counts winners.
Exactly one process may win a free lock, none a held one, and nobody may wait for a dead one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.store import process_identity, records, run_lock

from .common import TOY, Campaign, Figures, Session, numbers

RACERS = 4


def _dead_pid() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def _write(folder: Path, holder: dict[str, Any] | bytes, age: float = 0.0, number: int = 0) -> None:
    path = folder / f"lock.{number:04d}"
    path.write_bytes(holder if isinstance(holder, bytes) else json.dumps(holder).encode())
    moment = time.time() - age
    os.utime(path, (moment, moment))


def _me() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "host": process_identity.host(),
        "boot": process_identity.boot(),
        "pid": pid,
        "started": process_identity.started(pid),
    }


ELSEWHERE = {"host": "elsewhere", "boot": "x", "pid": 1, "started": "1"}
OLD = run_lock.STALE + 5

# name: (prepare, how many of the racing processes must get the lock)
SITUATIONS: dict[str, tuple[Callable[[Path, random.Random], None], int]] = {
    "no lock": (lambda f, r: None, 1),
    "dead process": (lambda f, r: _write(f, {**_me(), "pid": _dead_pid()}), 1),
    "reused pid": (lambda f, r: _write(f, {**_me(), "started": "1"}), 1),
    "released": (lambda f, r: _write(f, {"released": True}, number=r.randrange(20_000)), 1),
    "other host, silent": (lambda f, r: _write(f, ELSEWHERE, OLD), 1),
    "damaged, old": (lambda f, r: _write(f, r.randbytes(r.randrange(200)), OLD), 1),
    "held": (lambda f, r: _write(f, _me()), 0),
    "other host, alive": (lambda f, r: _write(f, ELSEWHERE, r.uniform(0, run_lock.STALE - 30)), 0),
    "clock ahead": (lambda f, r: _write(f, ELSEWHERE, -r.uniform(60, 10**6)), 0),
    "damaged, fresh": (lambda f, r: _write(f, r.randbytes(r.randrange(200))), 0),
}


def run(session: Session) -> None:
    """Race for locks, and run whole studies in two processes now and then."""
    sys.path.insert(0, str(TOY))
    figures, rng, folder = session.figures, session.rng(), session.folder
    earlier = figures.tried
    names = list(SITUATIONS)
    while session.goes_on():
        name = names[figures.tried % len(names)]
        prepare, winners = SITUATIONS[name]
        place = folder / f"race-{figures.tried}"
        place.mkdir()
        prepare(place, rng)
        won = _race(place, figures)
        figures.tried += 1
        figures.count(name)
        if won > winners:
            figures.fail("wrong", f"{name}: {won} processes got the lock")
        elif won < winners:
            figures.fail("lost", f"{name}: nobody got a free lock")
        shutil.rmtree(place)
    _clock_ahead_ends(folder, figures)
    for number in range(max(1, (figures.tried - earlier) // 100)):
        if not session.time_is_over:
            _two_runners(folder / f"study-{number}", figures, rng)
    _folder_faults(folder, figures)


def _race(place: Path, figures: Figures) -> int:
    """Let several processes try at the same moment; winners hold the lock until all have tried."""
    go_read, go_write = os.pipe()
    end_read, end_write = os.pipe()
    answers_read, answers_write = os.pipe()
    children = []
    for _ in range(RACERS):
        child = os.fork()
        if child == 0:
            os.close(go_write), os.close(end_write)
            os.read(go_read, 1)
            try:
                lock = run_lock.acquire(place)
                os.write(answers_write, b"1" if lock is not None else b"0")
            except BaseException:
                os.write(answers_write, b"!")
            os.read(end_read, 1)
            os._exit(0)
        children.append(child)
    os.close(go_write)  # all start
    answers = b""
    while len(answers) < RACERS:
        answers += os.read(answers_read, RACERS)
    os.close(end_write)
    for child in children:
        os.waitpid(child, 0)
    for descriptor in (go_read, end_read, answers_read, answers_write):
        os.close(descriptor)
    if b"!" in answers:
        figures.fail("crashed", f"a process failed on {sorted(os.listdir(place))}")
    return answers.count(b"1")


def _clock_ahead_ends(folder: Path, figures: Figures) -> None:
    """A lock whose time lies in the future is free after it was watched for long enough."""
    place = folder / "ahead"
    place.mkdir()
    _write(place, ELSEWHERE, -86_400)
    stale, run_lock.STALE = run_lock.STALE, 0.2
    try:
        end = time.monotonic() + 10
        while (lock := run_lock.acquire(place)) is None and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        run_lock.STALE = stale
    figures.tried += 1
    figures.count("clock ahead, watched")
    if lock is None:
        figures.fail("lost", "a lock from the future was never free")
    else:
        lock.release()


def _study(root: Path) -> None:
    import toy

    from gradcent_lab.experiment.run_config import OFF, ON
    from gradcent_lab.run.accelerator import Options
    from gradcent_lab.run.scheduler import run_pairs

    experiment = replace(toy.slow_experiment(), epochs=1)
    run_pairs(experiment, [OFF, ON], [0, 1], root, options=Options(checkpoint_seconds=0.0))


def _two_runners(root: Path, figures: Figures, rng: random.Random) -> None:
    """Two processes on one study, one of them killed at a random moment: every run once, the same numbers."""
    _study(root / "alone")
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                _study(root / "both")
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(child)
    time.sleep(rng.uniform(0.0, 1.0))
    os.kill(children[0], signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    figures.tried += 1
    figures.count("two runners on one study, one killed")
    alone, both = records.load(root / "alone"), records.load(root / "both")
    if codes[1] != 0 or len(both) != len(alone):
        figures.fail("lost", f"{len(both)} of {len(alone)} runs, exit status {codes[1]}")
    elif [numbers(r) for r in both] != [numbers(r) for r in alone]:
        figures.fail("wrong", "other numbers with two runners")
    if list((root / "both").rglob("lock.*")):
        figures.fail("wrong", "a lock is left")
    shutil.rmtree(root)


def _folder_faults(folder: Path, figures: Figures) -> None:
    """A folder that is removed while held, and one that may only be read."""
    place = folder / "removed"
    place.mkdir()
    lock = run_lock.acquire(place)
    assert lock is not None
    shutil.rmtree(place)
    figures.tried += 2
    figures.count("folder removed or read-only", 2)
    try:
        lock.check()
        figures.fail("silent", "the holder does not notice that its folder is gone")
    except run_lock.LostLock:
        pass
    lock.release()
    blocked = folder / "file"
    blocked.write_text("")
    try:
        run_lock.acquire(blocked)
        figures.fail("silent", "a file was locked as a folder")
    except UserError as error:
        if "\n" in str(error):
            figures.fail("crashed", str(error))


CAMPAIGN = Campaign(
    "locking",
    "races for one run, dead and foreign holders, skewed clocks, lost folders",
    run,
    target=1_000,
    short=20,
)
