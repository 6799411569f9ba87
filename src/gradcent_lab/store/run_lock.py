"""Who is at a run: locks that hold between processes and machines on a shared file system.

A lock is a file `lock.N` in the run's folder, created in one atomic step (a hard link, or O_EXCL where the
file system has no links), and the highest N counts. Nobody ever deletes or replaces another's lock: who finds
the highest one dead creates N + 1, and of several who try exactly one succeeds. The holder touches its file
every few seconds; it is dead when its process is gone (same machine) or the file has not been touched for
`STALE` seconds by the file system's own clock, so the clocks of the machines need not agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradcent_lab.store.atomic_files import disk_full, no_space

HEARTBEAT = 10.0  # seconds between touches
STALE = 90.0  # seconds without a touch after which a holder on another machine counts as dead


class LostLock(RuntimeError):
    """The lock was taken over: this process was away for too long, and another one goes on with the run."""


class Lock:
    """A held lock; `check` before writing, `release` at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="gradcent-lock")
        self._thread.start()

    def check(self) -> None:
        """Raise `LostLock` if someone has taken over."""
        newest = _newest(self.path.parent)
        if newest != self.path:
            raise LostLock(f"another process took over {self.path.parent}")

    def release(self) -> None:
        """Give the run up, so that the next one may take it at once."""
        self._stop.set()
        self._thread.join()
        try:
            _replace(self.path, {"released": True})
        except OSError:  # no room even for that; nobody can have counted on a lock that was alive till now
            self.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def acquire(folder: Path) -> Lock | None:
    """Take the lock of `folder`, or return None if a living process holds it."""
    newest = _newest(folder)
    number = 0 if newest is None else int(newest.suffix[1:]) + 1
    path = folder / f"lock.{number:04d}"
    try:
        if newest is not None and not _is_free(newest):
            return None
        return Lock(path) if _create(path, _me()) else None
    except OSError as error:
        if disk_full(error):
            raise no_space(path) from error
        raise


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Lock | None]:
    """Hold the lock of `folder` for the block, or give None where someone else has it."""
    lock = acquire(folder)
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


def clear(folder: Path) -> None:
    """Remove the lock files of a finished run; its result now keeps others away."""
    for path in folder.glob("lock.*"):
        path.unlink(missing_ok=True)


def is_held(folder: Path) -> bool:
    """Whether a living process is at the run."""
    newest = _newest(folder)
    return newest is not None and not _is_free(newest)


def _newest(folder: Path) -> Path | None:
    return max(folder.glob("lock.[0-9]*"), default=None)


def _is_free(path: Path) -> bool:
    try:
        text = path.read_text()
        age = _now(path.parent) - path.stat().st_mtime
    except FileNotFoundError:
        return True
    try:
        holder = json.loads(text)
    except json.JSONDecodeError:  # created without links and not yet filled
        return age > STALE
    if holder.get("released"):
        return True
    if holder["host"] == _host() and holder["boot"] == _boot():
        return bool(_started(holder["pid"]) != holder["started"])
    return age > STALE


def _create(path: Path, document: dict[str, Any]) -> bool:
    """Create `path` with its content if it is not there; False if someone was quicker."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    text = json.dumps(document)
    try:
        temporary.write_text(text)
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
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
        temporary.unlink(missing_ok=True)


def _replace(path: Path, document: dict[str, Any]) -> None:
    if not path.exists():  # the folder went with a finished or discarded run
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.write_text(json.dumps(document))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _now(folder: Path) -> float:
    """The file system's idea of the present, which may be another machine's."""
    probe = folder / f".now.{uuid.uuid4().hex[:8]}.tmp"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _me() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": _host(), "boot": _boot(), "pid": pid, "started": _started(pid), "token": uuid.uuid4().hex}


def _host() -> str:
    # containers often share a host name, so the process namespace is part of it: pids mean nothing across
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process started (pids are used again); None if there is no such living process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except OSError:
        pass
    try:  # no /proc: the best that POSIX has
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "running"
