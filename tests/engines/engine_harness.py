"""Runs engine cases in real processes: torchrun, gloo, one launch for all cases of one world size.

Starting processes costs more than the cases do, so a launch works through a list and writes what each
case returned (or the traceback) to a file, from which the tests, and the matrix page, read.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclass
class Case:
    """One engine in one configuration, and what its difference to the truth may be at most."""

    name: str
    engine: str
    verifies: str
    world: int
    run: Callable[..., dict[str, Any]]
    limit: float
    package: str = "torch"
    options: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {}
MODULES = (
    "engine_ddp",
    "engine_fsdp2",
    "engine_tp",
    "engine_fsdp1",
    "engine_checkpoint",
    "engine_accelerate",
    "engine_deepspeed",
)


def case(
    name: str,
    engine: str,
    verifies: str,
    *,
    world: int = 2,
    limit: float = 1e-10,
    package: str = "torch",
    **options: Any,
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Register a case; its function returns a dict with "difference" and whatever else the tests check."""

    def keep(run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        assert name not in CASES, name
        CASES[name] = Case(name, engine, verifies, world, run, limit, package, options)
        return run

    return keep


def refused(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    """Check that a call is refused with an error that says those words."""
    try:
        call()
    except kind as error:
        if words in str(error):
            return
        raise
    raise AssertionError(f"{kind.__name__} with {words!r} was expected")


def load() -> dict[str, Case]:
    """Import all modules of cases."""
    for module in MODULES:
        importlib.import_module(module)
    return CASES


def launch(names: list[str], world: int, folder: Path, seconds: int = 900) -> dict[str, dict[str, Any]]:
    """Run cases under torchrun and return what each gave."""
    out = folder / f"results-{world}.json"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "default",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    command += [str(HERE / "engine_harness.py"), str(out), *names]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds, cwd=folder, check=False
    )
    results: dict[str, dict[str, Any]] = json.loads(out.read_text()) if out.exists() else {}
    for name in names:
        results.setdefault(name, {"error": f"no result; the launch ended with\n{done.stderr[-6000:]}"})
    return results


def main() -> None:
    """In a worker: run the cases named, all ranks together; rank 0 writes what came out."""
    import torch
    import torch.distributed as dist

    load_as = sys.modules["engine_harness"] = sys.modules["__main__"]
    cases = load_as.load()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    out, names = Path(sys.argv[1]), sys.argv[2:]
    results: dict[str, Any] = {}
    for name in names:
        try:
            mine = cases[name].run(**cases[name].options)
        except Exception:
            mine = {"error": traceback.format_exc()}
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        failed = [f"rank {rank}:\n{each['error']}" for rank, each in enumerate(everyone) if "error" in each]
        result = {"error": "\n".join(failed)} if failed else dict(everyone[0])
        if "difference" in result:
            result["difference"] = max(each["difference"] for each in everyone)
        results[name] = result
        if dist.get_rank() == 0:
            out.write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
