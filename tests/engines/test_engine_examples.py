"""The examples that need no environment of their own run, and the sums of weight vectors stay as they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from engine_examples import EXAMPLES, TORCHRUN, drift_in_example, run_python


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine", "package", "start"),
    [
        ("fsdp2", "FSDP2 fully_shard", "torch", TORCHRUN),
        ("fsdp1", "FSDP1", "torch", TORCHRUN),
        ("with_accelerate", "Accelerate", "accelerate", ()),
        ("with_trainer", "Hugging Face Trainer", "transformers", ()),
        ("with_timm", "timm", "timm", ()),
    ],
)
def test_example(name: str, engine: str, package: str, start: tuple[str, ...], verified: Any) -> None:
    what = f"examples/integrations/{name}.py: weight sums stay, float32"
    verified(engine, package, what, drift_in_example(name, *start), 1e-6)


def test_every_example_is_short_and_has_a_test() -> None:
    here = EXAMPLES.parents[1] / "tests" / "engines"
    tests = "".join(path.read_text() for path in here.glob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 80, path.name
        assert f'"{path.stem}"' in tests, f"{path.name} is run by no test"


ENDING = """
import runpy, sys
from pathlib import Path
import torch.distributed as dist

def threads(when):
    print(when, *{each.joinpath("comm").read_text().strip() for each in Path("/proc/self/task").iterdir()})

def destroy_process_group(destroy=dist.destroy_process_group):
    threads("training:")
    destroy()

dist.destroy_process_group = destroy_process_group
runpy.run_path(sys.argv[1], run_name="__main__")
threads("left:")
"""


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the names of threads are read from Linux's /proc")
def test_the_groups_threads_are_gone_when_the_fsdp1_example_ends(tmp_path: Path) -> None:
    """One that still frees a tensor when the interpreter ends would abort it ("terminate called …")."""
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    done = run_python([*TORCHRUN, str(script), str(EXAMPLES / "fsdp1.py")])
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    for when, number in (
        ("training:", 2),
        ("left:", 0),
    ):  # that there were such threads shows we would see them
        said = [line for line in lines if line.startswith(when)]
        assert len(said) == 2
        assert sum("gloo" in line for line in said) == number, done.stdout
