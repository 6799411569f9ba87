"""`make demo` installs the extra `demo` alone, so the demo must run without every other optional package."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# import names that differ from the distribution's
MODULES = {"faster-coco-eval": "faster_coco_eval", "pillow": "PIL", "scikit-learn": "sklearn"}
# dependencies of matplotlib and accelerate, which the extra brings
INDIRECT = {"pillow", "safetensors"}


def extras() -> dict[str, set[str]]:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return {name: {re.split(r"[<>=;\[ ]", text)[0] for text in texts} for name, texts in table.items()}


def test_the_demo_runs_with_its_extra_alone(tmp_path):
    names = extras()
    assert names["demo"] < names["lab"]
    absent = (names["lab"] | names["dev"]) - names["demo"] - INDIRECT
    modules = sorted(MODULES.get(name, name.replace("-", "_")) for name in absent)
    assert "torchvision" in modules
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
        "from gradcent_lab.cli import main\n"
        f"sys.exit(main(['demo', '--seeds', '1', '--epochs', '1', '--workers', '1', '--out', {str(tmp_path)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "report.html").exists()


def test_make_demo_installs_that_extra(tmp_path):
    """On a fresh machine `make demo` asks pip for nothing else."""
    planned = subprocess.run(
        ["make", "--dry-run", "demo", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    installs = [line for line in planned.splitlines() if "pip install" in line]
    assert len(installs) == 1
    assert '".[demo]"' in installs[0]
    assert "--quiet" in installs[0]
