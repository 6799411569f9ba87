"""The store: one folder per run, named by the hash of its configuration, and the records read from it.

<root>/<study>/<run id>/config.json        the full configuration
                        recipe.json        recipe, scale and switches, for runs of a recipe
                        environment.json   versions, machine, threads
                        metrics.jsonl      one line per epoch
                        iterations.jsonl   one line per iteration, where the experiment observes them
                        result.json        exists only when the run is finished; seals the other files
                        checkpoint.pt      exists only while the run is not finished
                        lock.*             which process runs it (run_lock.py)
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import RecipeInfo, RunConfig
from gradcent_lab.names import check_folder_name
from gradcent_lab.store import run_lock
from gradcent_lab.store.atomic_files import (
    drop_abandoned,
    drop_leftovers,
    lines_text,
    make_folder,
    read_bytes,
    read_json,
    read_lines,
    write_json,
    write_lines,
)
from gradcent_lab.store.integrity import check_facts, check_seal, seal
from gradcent_lab.store.record_types import check_recipe, check_types


@dataclass(frozen=True)
class RunRecord:
    """A finished run."""

    study: str
    cell: str
    arm: str
    seed: int
    scale: str
    best: float
    last: float
    metric_name: str
    higher_is_better: bool
    curves: list[dict[str, Any]]
    config: dict[str, Any]
    environment: dict[str, Any]
    path: Path
    best_epoch: int
    initial_weights: str
    seconds: float  # of training
    wall_seconds: float | None = None  # of the whole run; None for runs of earlier versions
    processor_seconds: float | None = None
    diverged: str = ""  # where and how the loss stopped being a number; empty for a run that finished
    metrics: tuple[str, ...] = ()  # where a run has more than one, the names under which its curves have them
    recipe: RecipeInfo | None = None  # None for a user's own experiment, and for runs of earlier versions

    @property
    def is_paper_scale(self) -> bool:
        """Whether the run is the paper's experiment at its full size."""
        return self.scale == "paper" if self.recipe is None else self.recipe.is_paper

    def iterations(self) -> list[dict[str, Any]]:
        """What the experiment observed in every iteration; empty where it observed nothing."""
        return read_lines(self.path / "iterations.jsonl")


def folder(root: Path, config: RunConfig) -> Path:
    """Return the folder of a run, which is always below `root`."""
    return Path(root) / check_folder_name(config.study, "the experiment name") / config.run_id


def is_finished(path: Path) -> bool:
    """Whether the run in `path` has its result."""
    return (path / "result.json").exists()


def begin(path: Path, config: RunConfig) -> None:
    """Create a run's folder with its configuration and environment."""
    make_folder(path)
    write_json(path / "config.json", config.as_dict())
    if config.recipe is not None:
        write_json(path / "recipe.json", config.recipe.as_dict())
    write_json(path / "environment.json", environment())


# what is written into a run's folder
_FILES = (
    "checkpoint.pt",
    "config.json",
    "environment.json",
    "iterations.jsonl",
    "metrics.jsonl",
    "recipe.json",
    "result.json",
)


def finish(path: Path, result: dict[str, Any], curves: list[dict[str, Any]]) -> None:
    """Write the curves, then the result that seals the run, then delete what only a restart needs."""
    write_lines(path / "metrics.jsonl", curves)
    # checksums of what was meant to be written, not of what the disk made of it
    contents = {"metrics.jsonl": lines_text(curves).encode()}
    write_json(path / "result.json", seal(path, result, contents))
    (path / "checkpoint.pt").unlink(missing_ok=True)
    for name in _FILES:
        drop_leftovers(path / name)
    drop_abandoned(path, own=True)


def sweep(path: Path) -> None:
    """Delete what a process that was killed after writing its result left in the folder of a finished run."""
    with contextlib.suppress(OSError, UserError):  # a store that may only be read stays as it is
        leftovers = ("checkpoint.pt", "failed.json")
        if not any(p.name.startswith((".", "lock.")) or p.name in leftovers for p in path.iterdir()):
            return
        if run_lock.is_held(path):  # the process that finished it is alive and does this itself
            return
        for name in leftovers:
            (path / name).unlink(missing_ok=True)
        for name in _FILES:
            drop_leftovers(path / name)
        run_lock.clear(path)
        drop_abandoned(path, own=True)


def load_run(path: Path) -> RunRecord:
    """Read one finished run; raise `Damaged` if any of its files is not what was written."""
    if not is_finished(path):
        raise UserError(f"{path} holds no finished run")
    text = read_bytes(path / "result.json")
    result = read_json(path / "result.json")
    check_seal(path, result, text)
    config = read_json(path / "config.json")
    environment = read_json(path / "environment.json")
    curves = read_lines(path / "metrics.jsonl")
    check_types(path, config, result, environment, curves)
    check_facts(path, config, result, curves)
    return RunRecord(
        study=config["study"],
        cell=config["cell"],
        arm=config["arm"]["name"],
        seed=config["seed"],
        scale=config["scale"],
        best=result["best"],
        last=result["last"],
        metric_name=result["metric_name"],
        higher_is_better=result["higher_is_better"],
        curves=curves,
        config=config,
        environment=environment,
        path=path,
        best_epoch=result["best_epoch"],
        initial_weights=result["initial_weights"],
        seconds=result["seconds"],
        wall_seconds=result.get("wall_seconds"),
        processor_seconds=result.get("processor_seconds"),
        diverged=str(result.get("diverged", "")),
        metrics=tuple(result.get("metrics", ())),
        # a file that the seal does not cover is not read
        recipe=_read_recipe(path / "recipe.json") if "recipe.json" in result["files"] else None,
    )


def _read_recipe(path: Path) -> RecipeInfo:
    document = read_json(path)
    check_recipe(path, document)
    return RecipeInfo.from_dict(document)


def load(root: Path | str, study: str | None = None) -> list[RunRecord]:
    """Read every finished run under `root`, of one study or of all, in a fixed order."""
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: run something first, or name another folder")
    studies = [root / study] if study is not None else sorted(p for p in root.iterdir() if p.is_dir())
    runs = [run for folder_ in studies if folder_.is_dir() for run in sorted(folder_.iterdir())]
    records = [load_run(run) for run in runs if is_finished(run)]
    return sorted(records, key=lambda r: (r.study, r.scale, r.cell, r.seed, r.arm))


def unfinished(root: Path | str, study: str) -> list[Path]:
    """Return the folders of a study's runs that have begun and not ended."""
    place = Path(root) / study
    if not place.is_dir():
        return []
    return sorted(p for p in place.iterdir() if (p / "config.json").exists() and not is_finished(p))


def discard(path: Path) -> None:
    """Delete a run's folder."""
    shutil.rmtree(path, ignore_errors=True)


# environment variables that change arithmetic or sharding; none of them names the machine or its user
_VARIABLES = (
    "ACCELERATE_USE_FSDP",
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "FSDP_OFFLOAD_PARAMS",
    "FSDP_VERSION",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TORCHDYNAMO_DISABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)


def environment() -> dict[str, Any]:
    """Return what a reader needs to judge or repeat a run, without naming the machine or its user."""
    import importlib.metadata

    import torch

    import gradcent  # noqa: F401  (its version, where it is not installed)

    versions: dict[str, str | None] = {}
    for package in ("gradcent", "torch", "torchvision", "accelerate", "numpy", "scipy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = getattr(sys.modules.get(package), "__version__", None)
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "versions": versions,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "gpus": devices,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "variables": {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)},
        "program": Path(sys.argv[0]).name,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
