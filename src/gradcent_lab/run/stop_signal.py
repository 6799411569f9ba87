"""SIGTERM: a training run writes a last checkpoint before the process ends; anything else ends at once.

Job schedulers and container runtimes send SIGTERM and, after a grace period, SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Terminated(BaseException):
    """The process was asked to end by SIGTERM; not an `Exception`, so that user code does not swallow it."""


_state: dict[str, Any] = {"deferred": 0, "requested": False, "pid": None}


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Handle SIGTERM inside the block; does nothing outside the main thread, where Python allows no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _handle)
    _state.update(requested=False, deferred=0, pid=os.getpid())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)
        _state["requested"] = False


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Only remember a SIGTERM that arrives inside the block, which calls `requested` regularly."""
    _state["deferred"] += 1
    try:
        yield
    finally:
        _state["deferred"] -= 1


def requested() -> bool:
    """Whether a SIGTERM has arrived."""
    return bool(_state["requested"])


def _handle(number: int, frame: Any) -> None:
    if os.getpid() != _state["pid"]:  # a forked child inherited the handler
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    repeated, _state["requested"] = _state["requested"], True
    if repeated or not _state["deferred"]:
        raise Terminated
