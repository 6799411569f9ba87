"""Campaign 2: every file operation of a run fails in turn, in six ways; the store must hold the old or the new state.

The operations of one run of the toy experiment (open, write, flush, rename, link, remove, folder listing) are
counted once: two epochs of two steps, a checkpoint after every step. Then the run is repeated
for every operation and every kind of failure, in a forked process where it is killed. It may end with one line
of explanation or, if it was killed, without. Afterwards whatever was finished loads, the run continues without faults, and its
numbers are those of an undisturbed run.
"""

from __future__ import annotations

import builtins
import errno
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import ON
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.scheduler import run_pairs
from gradcent_lab.store import records

from .common import TOY, Campaign, Figures, Session, numbers

CODES = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES, "EINTR": errno.EINTR}
KINDS = (*CODES, "kill", "torn write")
FILES = {"config.json", "environment.json", "iterations.jsonl", "metrics.jsonl", "result.json"}


class Faults:
    """Counts file operations below a folder and lets operation number `at` fail."""

    def __init__(self, root: Path, at: int | None, kind: str) -> None:
        self.root, self.at, self.kind, self.count = str(root), at, kind, 0
        self.names: list[str] = []
        self._originals: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Replace the functions of `os` and `open` that the store uses."""
        for name in ("replace", "link", "unlink", "listdir", "utime", "mkdir", "scandir", "stat"):
            self._set(os, name, self._wrapped(name, getattr(os, name)))
        self._set(os, "fsync", self._wrapped("fsync", os.fsync, always=True))
        original = builtins.open

        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if self._below(file):
                self._operation("open", file)
            stream = original(file, mode, *args, **kwargs)
            if self._below(file) and mode == "wb":
                return _Stream(stream, self)
            return stream

        self._set(builtins, "open", open_)

    def remove(self) -> None:
        """Put the original functions back."""
        while self._originals:
            setattr(*self._originals.pop())

    def _set(self, module: Any, name: str, function: Any) -> None:
        self._originals.append((module, name, getattr(module, name)))
        setattr(module, name, function)

    def _wrapped(self, name: str, original: Callable[..., Any], always: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if always or (args and self._below(args[0])):
                self._operation(name, None if always else args[0])
            return original(*args, **kwargs)

        return call

    def _below(self, file: Any) -> bool:
        return isinstance(file, str | os.PathLike) and os.fspath(file).startswith(self.root)

    def _operation(self, name: str, file: Any, tear: Callable[[], None] = lambda: None) -> None:
        self.count += 1
        self.names.append(name)
        if self.count != self.at:
            return
        if self.kind == "torn write":
            tear()
        if self.kind in ("kill", "torn write"):
            os.kill(os.getpid(), signal.SIGKILL)
        names = [] if file is None else [os.fspath(file)]  # as the operating system does
        raise OSError(CODES[self.kind], os.strerror(CODES[self.kind]), *names)


class _Stream:
    """A file whose writes may fail, or be cut in half by a kill."""

    def __init__(self, stream: Any, faults: Faults) -> None:
        self._stream, self._faults = stream, faults

    def write(self, content: Any) -> int:
        view = memoryview(content)

        def tear() -> None:
            self._stream.write(view[: view.nbytes // 2])
            self._stream.flush()

        self._faults._operation("write", None, tear)
        return int(self._stream.write(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.close()


def work(root: Path) -> None:
    """One run with a checkpoint after every step."""
    import campaign_study

    run_pairs(campaign_study.experiment(), [ON], [0], root, options=Options(checkpoint_seconds=0.0))


def run(session: Session) -> None:
    """Try points in a random order that is the same in every session, until all are tried."""
    if str(TOY) not in sys.path:
        sys.path.insert(0, str(TOY))
    torch.set_num_threads(1)
    figures, folder = session.figures, session.folder
    work(folder / "whole")
    (whole,) = records.load(folder / "whole")
    expected = numbers(whole)
    names = _operations(folder)
    points = [(at, kind) for at in range(1, len(names) + 1) for kind in KINDS]
    points = [point for point in points if point[1] != "torn write" or names[point[0] - 1] == "write"]
    random.Random(session.seed).shuffle(points)
    if figures.details.setdefault("points", len(points)) != len(points):
        raise SystemExit("faults: a run has another number of file operations now: start without --more")
    for at, kind in points[figures.tried :]:
        if not session.goes_on():
            break
        root = folder / "runs"
        message = _disturbed(root, folder / "message", at, kind)
        figures.tried += 1
        figures.count(f"{kind} in {names[at - 1]}")
        _judge(root, kind, f"{kind} at operation {at} ({names[at - 1]})", message, expected, figures)
        shutil.rmtree(root, ignore_errors=True)
    figures.details["operations of one run"] = len(names)


def _operations(folder: Path) -> list[str]:
    """Return the names of all operations of a run, counted in a forked process."""
    out = folder / "operations"
    child = os.fork()
    if child == 0:
        faults = Faults(folder / "counted", None, "")
        faults.install()
        work(folder / "counted")
        names = " ".join(faults.names)
        with open(out, "w") as stream:
            stream.write(names)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return out.read_text().split()


def _disturbed(root: Path, out: Path, at: int, kind: str) -> str:
    """Run with one fault; return the error message ("" for a kill, "done" if the run ended all the same)."""
    if kind not in ("kill", "torn write"):
        return _message(root, at, kind)
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        out.write_text(_message(root, at, kind))
        os._exit(0)
    os.waitpid(child, 0)
    return out.read_text() if out.exists() else ""


def _message(root: Path, at: int, kind: str) -> str:
    faults = Faults(root, at, kind)
    faults.install()
    try:
        work(root)
    except UserError as error:
        return f"UserError: {error}"
    except BaseException:
        return traceback.format_exc()
    finally:
        faults.remove()
    return "done"


def _judge(
    root: Path, kind: str, point: str, message: str, expected: list[dict[str, Any]], figures: Figures
) -> None:
    if message == "" and kind not in ("kill", "torn write"):
        figures.fail("crashed", f"{point}: the process died")
    if message and message != "done" and ("\n" in message or not message.startswith("UserError: ")):
        figures.fail("crashed", f"{point}: {message.splitlines()[-1]}")
    try:
        for record in records.load(root) if root.is_dir() else []:
            if numbers(record) != expected:
                figures.fail("wrong", f"{point}: other numbers right after the fault")
        work(root)
        (record,) = records.load(root)
    except Exception as error:
        figures.fail("lost", f"{point}: {type(error).__name__}: {error}")
        return
    if numbers(record) != expected:
        figures.fail("wrong", f"{point}: other numbers after the run continued")
    stray = sorted(p.name for p in record.path.iterdir() if p.name not in FILES)
    if stray:
        figures.fail("wrong", f"{point}: left behind {stray}")


CAMPAIGN = Campaign(
    "faults",
    "every file operation of a run failing in turn (ENOSPC, EIO, EACCES, EINTR, kill, torn write)",
    run,
    target=100_000,
    short=12,
)
