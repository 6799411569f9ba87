"""The Triton kernels in Triton's interpreter on the CPU, and compiled ahead of time for two generations of GPU.

There is no GPU where these tests were written: speed is not measured, correctness is.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
HERE = Path(__file__).parent
CHECKS = ["centralize", "sgd", "sgdw", "adam", "adamw", "adagrad", "scaled", "constant", "channels_last"]


def run(*arguments, **environment):
    """Triton decides at import whether it interprets, so each check has a process of its own."""
    import os

    import gradcent

    source = str(Path(gradcent.__file__).parent.parent)
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "triton_checks.py"), *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_in_the_interpreter():
    result = run(*CHECKS, TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == CHECKS


@pytest.mark.parametrize("capability", ["80", "90"])
def test_compiles_ahead_of_time(capability, tmp_path):
    result = run("compile", capability, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "30"
