"""Runs an example of examples/integrations as a user would, and reads what it says of GC."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run_python(words: list[str], seconds: int = 240) -> subprocess.CompletedProcess[str]:
    """Run this Python on one thread, with our sources importable."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def drift_in_example(name: str, *start: str, seconds: int = 240) -> float:
    """Run an example of at most 80 lines; return how far the mean of a weight vector drifted in it."""
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 80
    done = run_python([*start, str(path)], seconds)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"centralized: [1-9]", done.stdout), done.stdout
    drift = re.search(r"drift of a weight vector's mean: (\S+)", done.stdout)
    assert drift is not None, done.stdout
    return float(drift[1])
