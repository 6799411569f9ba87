"""The C kernels under the address and undefined-behaviour sanitizers, and the same bits on each instruction set."""

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc") or not shutil.which("bash"), reason="needs a C compiler and bash")
def test_sanitizers_find_nothing():
    script = Path(__file__).with_name("sanitize.sh")
    result = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    if "cannot find" in result.stderr and "asan" in result.stderr:
        pytest.skip("the compiler has no sanitizer libraries")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "orders of memory" in result.stdout
    assert "failed allocations" in result.stdout
