"""Campaign 5: a rank killed, a launch or a run ended by SIGTERM, a Ray worker and a Ray node lost.

Every trial must end by itself within `PATIENCE`, and the same command afterwards must give the numbers of an
undisturbed launch. Most launches are those of torch's elastic agent, as `torchrun` starts it, with the agent
and its ranks forked from a process that has imported everything; one in five is `torchrun` itself. Ray trials
run on real nodes of a local cluster, in a process of their own (campaigns/ray_trials.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from gradcent_lab.store import records

from . import forks
from .common import ROOT, TOY, Campaign, Figures, Session, child_environment, numbers

PATIENCE = 300.0  # seconds after which a process counts as hanging
GRACE = 180.0  # seconds that a process may take to end after SIGTERM, on a busy machine
WORDS = ["run", "campaign", "--scale", "smoke", "--seeds", "2", "--checkpoint-seconds", "0", "--cpu"]
KINDS = (
    *("rank killed", "SIGTERM") * 4,
    "rank of torchrun killed",
    "SIGTERM to a launch",
    "Ray worker killed",
    "Ray node lost",
    "Ray worker killed",
)


def run(session: Session) -> None:
    """Try the kinds in turn; the Ray trials of a session follow at its end, on one cluster."""
    forks.import_everything(session.folder / "imports")
    figures, rng = session.figures, session.rng()
    expected = {
        one: _undisturbed(session.folder / name, one) for one, name in ((True, "one"), (False, "two"))
    }
    ray_trials = [kind for kind in _kinds(figures.tried, session.n) if kind.startswith("Ray")]
    for number, kind in enumerate(_kinds(figures.tried, session.n)):
        if kind.startswith("Ray") or session.time_is_over:
            continue
        root = session.folder / f"trial-{number}"
        _trial(kind, root, expected[kind == "SIGTERM"], figures, rng)
        session.goes_on()
        shutil.rmtree(root, ignore_errors=True)
    if ray_trials and not session.time_is_over:
        _ray(ray_trials, session)


def _kinds(first: int, n: int) -> list[str]:
    return [KINDS[number % len(KINDS)] for number in range(first, n)]


def _undisturbed(root: Path, one: bool) -> tuple[dict[str, object], float]:
    """Return the numbers of a launch of one or two processes, and how long its first process computes."""
    process = _start("SIGTERM" if one else "rank killed", root)
    life = 0.0
    end = time.monotonic() + PATIENCE
    while (status := forks.wait(process, 0.0)) is None and time.monotonic() < end:
        life = max([life, *(forks.computed(pid) for pid in ([process] if one else _children(process)))])
        time.sleep(0.005)
    assert status == 0, f"the undisturbed launch ended with {status}"
    return _runs(root), life


def _runs(root: Path) -> dict[str, object]:
    return {r.path.name: (numbers(r), r.iterations()) for r in records.load(root)}


def _start(kind: str, root: Path) -> int:
    """Start the command in one process, or in two by torch's elastic agent or by torchrun; return the process id."""
    words = [*WORDS, "--out", str(root)]
    if kind == "SIGTERM":
        return forks.fork_command(words)
    if kind != "rank of torchrun killed":
        return forks.fork(lambda: _agent(words))
    program = [str(TOY / "campaign_study.py"), *words]
    quiet = subprocess.DEVNULL
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *program,
    ]
    process = subprocess.Popen(command, env=child_environment(), stdin=quiet, stdout=quiet, stderr=quiet)
    process.returncode = 0  # `forks.wait` collects it by its pid
    return process.pid


def _agent(words: list[str]) -> int:
    """Launch two ranks that are forked from this process, as torchrun does with new interpreters."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=f"campaign-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=0,
        monitor_interval=0.1,
    )
    elastic_launch(config, _rank)(words)
    return 0


def _rank(words: list[str]) -> None:
    from gradcent_lab.cli import main

    status = main(words)
    if status:
        sys.exit(status)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _trial(
    kind: str, root: Path, expected: tuple[dict[str, object], float], figures: Figures, rng: random.Random
) -> None:
    """Disturb one launch, then let the same command end."""
    runs, life = expected
    for _ in range(20):
        process = _start(kind, root)
        new = kind == "rank of torchrun killed"
        moment = rng.uniform(0.0, life) + (forks.import_time() if new else 0.0)
        if _disturb(kind, process, moment, rng):
            break
        forks.wait(process, PATIENCE)  # it ended before the moment: once more
        shutil.rmtree(root, ignore_errors=True)
    else:
        figures.fail("lost", f"{kind}: the launch always ended before it was disturbed")
        return
    figures.tried += 1
    figures.count(kind)
    status = forks.wait(process, GRACE if "SIGTERM" in kind else PATIENCE)
    if status is None:
        _end_tree(process)
        figures.fail("lost", f"{kind}: still there {GRACE if 'SIGTERM' in kind else PATIENCE:.0f} s later")
    elif status == 0 and kind != "SIGTERM":
        figures.count(f"{kind}: all runs were finished")
    elif kind == "SIGTERM" and status not in (143, 0, -signal.SIGTERM):
        figures.fail("crashed", f"{kind}: exit status {status}")
    else:
        figures.count(f"{kind}: exit status {status}")
    status = forks.wait(_start("SIGTERM" if kind == "SIGTERM" else "rank killed", root), PATIENCE)
    if status != 0:
        figures.fail("lost", f"{kind}: the same command ended with {status}")
    elif _runs(root) != runs:
        figures.fail("wrong", f"{kind}: other numbers after the launch continued")
    stray = [
        p.name for p in root.glob("campaign/*/*") if p.name.startswith((".", "lock.", "check", "failed"))
    ]
    if stray:
        figures.fail("wrong", f"{kind}: left behind {sorted(stray)}")


def _disturb(kind: str, process: int, moment: float, rng: random.Random) -> bool:
    """Wait until the process, or its ranks, computed for `moment` seconds; signal; False if it ended before."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and Path(f"/proc/{process}/schedstat").exists():
        ranks = [process] if kind == "SIGTERM" else _ranks(process)
        if ranks and max(map(forks.computed, ranks)) >= moment:
            target = process if "SIGTERM" in kind else rng.choice(ranks)
            try:
                os.kill(target, signal.SIGTERM if "SIGTERM" in kind else signal.SIGKILL)
            except ProcessLookupError:
                return False
            return True
        if _is_zombie(process):
            return False
        time.sleep(0.001)
    return False


def _ranks(agent: int) -> list[int]:
    """Return the ranks of a launch once both are there; the agent's other children do not have RANK set."""
    children = [pid for pid in _children(agent) if not _is_zombie(pid)]
    return children if len(children) == 2 else []


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def _end_tree(process: int) -> None:
    for child in _children(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    forks.kill(process)


def _ray(kinds: list[str], session: Session) -> None:
    """Run the Ray trials in a process of their own and add its figures."""
    figures = session.figures
    left = math.inf if session.end is None else session.end - time.monotonic()
    command = [sys.executable, "-m", "campaigns.ray_trials", str(session.folder / "ray"), str(session.seed)]
    try:
        answer = subprocess.run(
            [*command, f"{left:.0f}", *kinds],
            env=child_environment(),
            cwd=ROOT / "tools",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE * len(kinds),
        )
    except subprocess.TimeoutExpired:
        figures.fail("lost", "the Ray trials hang")
        return
    lines = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        figures.tried += 1
        figures.count(line["kind"])
        if line["problem"]:
            figures.fail(*line["problem"])
    if answer.returncode:
        figures.fail("crashed", f"the Ray trials ended with {answer.returncode}")


CAMPAIGN = Campaign(
    "launches",
    "one of two ranks killed, SIGTERM with a grace period, a Ray worker and a Ray node lost",
    run,
    target=52,
    short=2,
)
