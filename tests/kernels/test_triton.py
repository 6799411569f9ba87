"""The Triton kernels in Triton's interpreter on the CPU, against the float64 equations.

There is no GPU where these tests were written: speed is not measured, correctness is. What the compiled
kernels look like is tested in test_triton_promises.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
HERE = Path(__file__).parent
CHECKS = [
    "centralize", "sgd", "sgd_layouts", "new_parameters", "adam", "adagrad", "scaled", "device_numbers",
    "constant", "offset", "moved", "refused", "optimizer", "self_check",
    "self_check_operations", "bench",
]  # fmt: skip


@pytest.mark.parametrize("part", [CHECKS[:4], CHECKS[4:]])
def test_in_the_interpreter(part):
    """Triton decides at import whether it interprets, so the checks have processes of their own."""
    import gradcent

    path = os.pathsep.join([str(Path(gradcent.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", str(HERE / "triton_checks.py"), *part]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == part
