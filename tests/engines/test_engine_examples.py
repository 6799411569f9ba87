"""The examples run, and the sums of weight vectors stay as they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("fsdp2", TORCHRUN), ("fsdp1", TORCHRUN), ("several_parts", [])])
def test_example(name: str, start: list[str]) -> None:
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 80
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, *start, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "centralized: " in done.stdout
    drift = re.search(r"drift of a weight vector's mean: (\S+)", done.stdout)
    assert drift is not None
    assert float(drift[1]) < 1e-6
