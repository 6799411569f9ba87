"""Campaign 1: kill a study with SIGKILL at random moments, again and again, and let it continue.

A study is two seeds of a tiny experiment with a checkpoint after every step. The process is killed at a random
moment of its whole life (start, training, writing, report) and started again until it ends by itself. Then
every run must be there once, with the numbers of a study that nobody disturbed, and no other file may be left.

One study in ten is the command `gradcent compare`, with its checks before and its report after the runs; the
others are the runs alone, so that more kills fall into them. Most processes are forked from one that has
imported everything, which moves the kills from the import of torch into the work itself; one process in fifty
is a new interpreter.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from gradcent_lab.store import records

from .common import TOY, Campaign, Figures, child_environment, numbers, time_is_over

FILES = {"config.json", "environment.json", "iterations.jsonl", "metrics.jsonl", "result.json"}
PATIENCE = 300.0  # seconds after which a process counts as hanging
WORDS = ["compare", "toy:slow_experiment", "--seeds", "2", "--epochs", "2", "--checkpoint-seconds", "0"]


def run(n: int, seed: int, folder: Path) -> Figures:
    """Kill `n` times."""
    import matplotlib.figure  # noqa: F401  (imported once, before the forks)
    import scipy.stats  # noqa: F401
    import torch

    import gradcent_lab.cli
    import gradcent_lab.commands.compare
    import gradcent_lab.run.trainer  # noqa: F401

    torch.set_num_threads(1)
    sys.path.insert(0, str(TOY))
    figures, rng = Figures(), random.Random(seed)
    _work(folder / "warm-up", command=False)  # imports what torch and accelerate import at first use
    lives: dict[bool, float] = {}
    expected: dict[str, object] = {}
    studies = 0
    while figures.tried < n and not time_is_over():
        studies += 1
        broken, command = folder / f"broken-{studies}", studies % 10 == 0
        if command not in lives:
            whole, began = folder / f"whole-{command}", time.monotonic()
            assert _wait(_fork(whole, command), began + PATIENCE) == 0, "the undisturbed study failed"
            lives[command] = time.monotonic() - began
            expected = {r.path.name: (numbers(r), r.iterations()) for r in records.load(whole / "runs")}
        _study(n, broken, command, lives[command], expected, figures, rng)
        shutil.rmtree(broken, ignore_errors=True)
    figures.details |= {"studies": studies, "runs compared": studies * len(expected)}
    return figures


def _study(
    n: int,
    root: Path,
    command: bool,
    life: float,
    expected: dict[str, object],
    figures: Figures,
    rng: random.Random,
) -> None:
    """Start and kill one study until it ends; at the last kill of the campaign let it end."""
    finished: dict[str, tuple[int, bytes]] = {}
    while True:
        fresh = command and figures.tried % 5 == 4
        process = _start(root) if fresh else _fork(root, command)
        moment = time.monotonic() + rng.uniform(0.0, (4 * life if fresh else life) * 0.8)
        last = figures.tried >= n or time_is_over()
        code = _wait(process, time.monotonic() + PATIENCE if last else moment)
        if code is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            if last:
                figures.fail("lost", f"a study hung for {PATIENCE:.0f} s")
                return
            figures.tried += 1
            kind = "compare, new interpreter" if fresh else "compare, forked" if command else "runs, forked"
            figures.count(f"kills of {kind}")
            _check_finished(root, finished, figures)
            continue
        _check_finished(root, finished, figures)
        if code != 0:
            figures.fail("crashed", f"exit status {code} after kill {figures.tried}")
            return
        _compare(root, command, expected, figures)
        return


def _check_finished(root: Path, finished: dict[str, tuple[int, bytes]], figures: Figures) -> None:
    """A run that was finished stays as it is: the same file, not written again."""
    for name, (inode, content) in finished.items():
        path = root / "runs" / "toy" / name / "result.json"
        if not path.exists():
            figures.fail("lost", f"the finished run {name} is gone after kill {figures.tried}")
        elif path.stat().st_ino != inode or path.read_bytes() != content:
            figures.fail("wrong", f"the finished run {name} ran twice before kill {figures.tried}")
    for path in root.glob("runs/toy/*/result.json"):
        finished.setdefault(path.parent.name, (path.stat().st_ino, path.read_bytes()))


def _compare(root: Path, command: bool, expected: dict[str, object], figures: Figures) -> None:
    runs = {r.path.name: (numbers(r), r.iterations()) for r in records.load(root / "runs")}
    if runs.keys() != expected.keys():
        figures.fail("lost", f"{len(runs)} of {len(expected)} runs after kill {figures.tried}")
    for name in runs.keys() & expected.keys():
        if runs[name] != expected[name]:
            figures.fail("wrong", f"other numbers in {name} after kill {figures.tried}")
    stray = {p.name for p in root.glob("runs/toy/*/*")} - FILES
    stray |= {p.name for p in root.iterdir() if p.suffix == ".tmp"}
    if stray:
        figures.fail("wrong", f"left behind: {sorted(stray)}")
    if command and not (root / "report.html").exists():
        figures.fail("lost", "the report is missing")


def _work(root: Path, command: bool) -> int:
    """What a forked process does."""
    from gradcent_lab.cli import main
    from gradcent_lab.experiment.run_config import OFF, ON
    from gradcent_lab.run.accelerator import Options
    from gradcent_lab.run.scheduler import run_pairs

    if command:
        return main([*WORDS, "--out", str(root)])
    import toy

    experiment = replace(toy.slow_experiment(), epochs=2)
    run_pairs(experiment, [OFF, ON], [0, 1], root / "runs", options=Options(checkpoint_seconds=0.0))
    return 0


def _fork(root: Path, command: bool) -> int:
    child = os.fork()
    if child:
        return child
    with contextlib.suppress(BaseException):
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os._exit(_work(root, command))
    os._exit(70)


def _start(root: Path) -> int:
    command = [sys.executable, "-m", "gradcent_lab.cli", *WORDS, "--out", str(root)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=child_environment(), stdin=quiet, stdout=quiet, stderr=quiet)
    process.returncode = 0  # this module waits for it by its pid
    return process.pid


def _wait(pid: int, until: float) -> int | None:
    """Return the exit status, or None if the process still runs at `until`."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.002)


CAMPAIGN = Campaign(
    "kills",
    "`gradcent compare` killed by SIGKILL at random moments and continued",
    run,
    target=1_000,
    short=4,
)
