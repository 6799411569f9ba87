"""Child processes of a campaign: forked from this one, which has imported everything, or new interpreters.

A forked child starts in milliseconds, so a kill falls into the work and not into the import of torch. What it
runs is the same: `gradcent_lab.cli.main` with the words of a command line.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .common import TOY, child_environment


def import_everything(folder: Path) -> None:
    """Import what the commands use, by one comparison in this process, so that forked children need not."""
    import torch

    from gradcent_lab.cli import main

    torch.set_num_threads(1)
    if str(TOY) not in sys.path:
        sys.path.insert(0, str(TOY))
    import campaign_study

    campaign_study.register_recipe()
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        status = main(["compare", "campaign_study:experiment", "--seeds", "1", "--out", str(folder)])
    assert status == 0, "the first comparison failed"
    gc.collect()
    gc.freeze()  # collections in the children skip, and so do not copy, what they share with this process


def fork(function: Callable[[], int], errors: Path | None = None) -> int:
    """Call `function` in a forked process, which ends with the status it returns; return the process id."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        if errors is not None:
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        status = function()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def fork_command(words: list[str], errors: Path | None = None) -> int:
    """Run `gradcent WORDS` in a forked process; return the process id."""

    def command() -> int:
        from gradcent_lab.cli import main

        return main(words)

    return fork(command, errors)


def start_command(words: list[str]) -> int:
    """Run `gradcent WORDS` in a new interpreter; return the process id."""
    program = [str(TOY / "campaign_study.py")] if words[0] == "run" else ["-m", "gradcent_lab.cli"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, *program, *words],
        env=child_environment(),
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
    )
    process.returncode = 0  # `wait` collects it by its pid
    return process.pid


def wait(pid: int, seconds: float, processor_seconds: float = math.inf) -> int | None:
    """Return the exit status (negative: the signal), or None if the process still runs after `seconds`.

    `processor_seconds` counts the computing time of its main thread instead, which other processes on the
    machine do not stretch.
    """
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end or computed(pid) >= processor_seconds:
            return None
        time.sleep(0.002)


def wait_unless_idle(pid: int, idle: float, processor_seconds: float) -> int | None:
    """Return the exit status, or None if the process has computed long enough, or not at all for `idle` seconds.

    A process that other processes keep from computing is not idle: it computes a little now and then.
    """
    last = 0.0
    while (status := wait(pid, idle, processor_seconds)) is None:
        present = computed(pid)
        if present >= processor_seconds or present <= last:
            return None
        last = present
    return status


def computed(pid: int) -> float:
    """Return how many seconds the main thread of a living process has computed."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):  # it has ended, or the system does not tell
        return 0.0


def life(pid: int, seconds: float) -> float:
    """Wait for a process that must succeed; return how long its main thread computed."""
    last = 0.0
    while (status := wait(pid, 0.0)) is None and seconds > 0:
        last = computed(pid) or last
        time.sleep(0.005)
        seconds -= 0.005
    assert status == 0, f"an undisturbed process ended with {status}"
    return last


def kill(pid: int) -> None:
    """End a child with SIGKILL and collect it."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@functools.cache
def import_time() -> float:
    """Return how long a new interpreter computes before a command begins."""
    code = "import campaign_study, gradcent_lab.cli, gradcent_lab.run.trainer, accelerate"
    process = subprocess.Popen([sys.executable, "-c", code], env=child_environment())
    process.returncode = 0  # `life` collects it by its pid
    return life(process.pid, 600.0)
