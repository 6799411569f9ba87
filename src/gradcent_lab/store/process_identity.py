"""Which process on which machine: enough to tell whether the owner of a file is still alive."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from pathlib import Path


@functools.cache
def host() -> str:
    """Return the name of this machine and process namespace.

    Containers often share a host name, and pids of one namespace mean nothing in another.
    """
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


@functools.cache
def boot() -> str:
    """Return an identifier of this boot of the machine, or an empty string where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """Return when a process started (pids are reused); None if no such process is alive."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except OSError:
        pass
    try:  # no /proc: the best that POSIX offers
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    return "running"


def tag() -> str:
    """Return a short word for temporary file names: the machine, the boot, the process and its start."""
    pid = os.getpid()
    return f"{_machine()}-{pid}-{started(pid)}"


def is_dead(word: str) -> bool:
    """Whether `word`, written by `tag`, names a process of this machine that no longer runs."""
    machine, _, process = word.partition("-")
    pid, _, start = process.partition("-")
    return is_local(machine) and pid.isdigit() and started(int(pid)) != start


def is_local(word: str) -> bool:
    """Whether `word`, written by `tag`, names a process of this machine, dead or alive."""
    return word.partition("-")[0] == _machine()


@functools.cache
def _machine() -> str:
    return hashlib.sha256(f"{host()} {boot()}".encode()).hexdigest()[:8]
