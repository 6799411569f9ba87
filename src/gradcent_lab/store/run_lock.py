"""Which process runs a run: locks that hold between processes and machines on a shared file system.

A lock is a file `lock.N` in the run's folder, created in one atomic step (a hard link, or O_EXCL where the
file system has no links), and the highest N counts. No process deletes or replaces another's lock: a process
that finds the highest one dead creates N + 1, and of several that try exactly one succeeds. The holder touches
its file every few seconds. A lock is dead when its process is gone (same machine), when the file has not been
touched for `STALE` seconds by the file system's own clock, or when this process has watched it unchanged for
`STALE` seconds. So the clocks of the machines need not agree. A lock file that cannot be read as one counts as
held until it is stale.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.store import process_identity
from gradcent_lab.store.atomic_files import disk_full, temporary_path, write_error

HEARTBEAT = 10.0  # seconds between touches
STALE = 90.0  # seconds without a touch after which a holder on another machine counts as dead

_NAME = re.compile(r"lock\.[0-9]{1,12}")
_watched: dict[
    Path, tuple[int, float]
] = {}  # locks of other machines: last touch, and since when it is the last


class LostLock(RuntimeError):
    """Another process took the lock over: this one was unresponsive for too long."""


class Lock:
    """A held lock; `check` before writing, `release` at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="gradcent-lock")
        self._thread.start()

    def check(self) -> None:
        """Raise `LostLock` if another process has taken over."""
        if _newest(self.path.parent) != self.path:
            raise LostLock(f"another process took over {self.path.parent}")

    def release(self) -> None:
        """Mark the run as free, so that the next process may take it at once."""
        self._stop.set()
        self._thread.join()
        try:
            _replace(self.path, {"released": True})
        except OSError:  # no space even for that: without its file the lock is free, too
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def acquire(folder: Path) -> Lock | None:
    """Take the lock of `folder`, or return None if a living process holds it."""
    try:
        newest = _newest(folder)
        path = folder / f"lock.{0 if newest is None else _number(newest) + 1:04d}"
        if not _NAME.fullmatch(path.name):
            raise UserError(
                f"{newest} has the highest number a lock can have: delete it if nothing runs there"
            )
        if newest is not None and not _is_free(newest):
            return None
        return Lock(path) if _create(path, _holder()) else None
    except FileNotFoundError:  # the folder was removed meanwhile; the caller creates it again
        return None
    except OSError as error:
        raise _lock_error(folder, error) from error


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Lock | None]:
    """Hold the lock of `folder` for the block, or yield None where another process has it."""
    lock = acquire(folder)
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


def clear(folder: Path) -> None:
    """Remove the lock files of a finished run; its result now keeps other processes away."""
    for path in _locks(folder):
        with contextlib.suppress(OSError):
            path.unlink()


def is_held(folder: Path) -> bool:
    """Whether a living process runs the run."""
    try:
        newest = _newest(folder)
        return newest is not None and not _is_free(newest)
    except OSError as error:
        raise _lock_error(folder, error) from error


def _lock_error(folder: Path, error: OSError) -> UserError:
    if disk_full(error) or isinstance(error, PermissionError):
        return write_error(folder / "lock", error)
    return UserError(f"cannot lock {folder} ({error.strerror or error}): check the disk and run again")


def _locks(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / name for name in names if _NAME.fullmatch(name)]


def _number(path: Path) -> int:
    return int(path.name.partition(".")[2])


def _newest(folder: Path) -> Path | None:
    return max(_locks(folder), key=_number, default=None)


def _is_free(path: Path) -> bool:
    try:
        if not path.is_file():  # a folder of that name belongs to nobody
            return True
        content = path.read_bytes()
    except FileNotFoundError:
        return True
    holder = _read_holder(content)
    if holder is None:  # created without links and not yet filled, or damaged
        return _is_stale(path)
    if holder.get("released") is True:
        return True
    if (holder.get("host"), holder.get("boot")) == (process_identity.host(), process_identity.boot()):
        return process_identity.started(holder["pid"]) != holder.get("started")
    return _is_stale(path)


def _read_holder(content: bytes) -> dict[str, Any] | None:
    """Return the holder that a lock file names; None if it names none."""
    try:
        holder = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(holder, dict):
        return None
    return holder if type(holder.get("pid")) is int or holder.get("released") is True else None


def _is_stale(path: Path) -> bool:
    """Whether a lock is old by the file system's clock, or was watched long enough without a touch."""
    try:
        touched = path.stat().st_mtime_ns
        if _now(path.parent) - touched / 1e9 > STALE:
            return True
    except FileNotFoundError:
        return True
    present = time.monotonic()
    last, since = _watched.get(path, (touched, present))
    if last != touched:
        since = present
    _watched[path] = (touched, since)
    return present - since > STALE


def _create(path: Path, document: dict[str, Any]) -> bool:
    """Create `path` with its content unless it exists; return False if another process was faster."""
    temporary = temporary_path(path)
    text = json.dumps(document)
    try:
        temporary.write_text(text)
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError as error:
        if disk_full(error):
            raise
        try:  # no hard links here
            with open(path, "x") as stream:
                stream.write(text)
            return True
        except FileExistsError:
            return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _replace(path: Path, document: dict[str, Any]) -> None:
    if not path.exists():  # the folder of a finished or discarded run was removed
        return
    temporary = temporary_path(path)
    try:
        temporary.write_text(json.dumps(document))
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _now(folder: Path) -> float:
    """Return the time of the file system's clock, which may be another machine's."""
    probe = temporary_path(folder / "now")
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _holder() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "host": process_identity.host(),
        "boot": process_identity.boot(),
        "pid": pid,
        "started": process_identity.started(pid),
        "token": uuid.uuid4().hex,
    }
