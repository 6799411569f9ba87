"""What a run stands on: accelerate's set-up, deterministic kernels, and the hash of the initial weights."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradcent_lab.cli import UserError
from gradcent_lab.config import RunConfig


@dataclass(frozen=True)
class Options:
    """How to run; none of it changes a result on one machine."""

    loader_workers: int = 0  # processes that read and augment images
    checkpoint_seconds: float = 30.0  # at most this much work is lost by a kill; 0 writes after every step
    trackers: tuple[str, ...] = ()  # accelerate's: tensorboard, wandb, mlflow
    cpu: bool = False  # leave the GPU alone


def weights_hash(model: nn.Module) -> str:
    """Return the sha256 of all parameters and buffers, names and shapes included."""
    total = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def make_accelerator(config: RunConfig, options: Options, folder: Path) -> Any:
    """Return accelerate's view of this process: device, precision, launch, trackers."""
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
    except ImportError as error:
        raise UserError("training needs accelerate: pip install 'gradcent[lab]'") from error

    AcceleratorState._reset_state()  # runs of one process may differ in precision; the process group stays
    try:
        accelerator = Accelerator(
            mixed_precision=config.numerics.precision,
            cpu=options.cpu,
            dynamo_backend="inductor" if config.numerics.compile else None,
            log_with=list(options.trackers) or None,
            project_dir=str(folder) if options.trackers else None,
            step_scheduler_with_optimizer=False,
        )
    except ValueError as error:
        raise UserError(f"accelerate refuses this set-up: {error}") from error
    if options.trackers:
        plain = {k: v for k, v in config.settings.items() if isinstance(v, int | float | str | bool)}
        accelerator.init_trackers(config.study, config={**plain, "arm": config.arm.name, "seed": config.seed})
    return accelerator


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for deterministic kernels while a run is on; an operation that has none goes on without."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fill = torch.utils.deterministic.fill_uninitialized_memory
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill
        torch.backends.cudnn.benchmark = benchmark
