"""Set up accelerate for a run, and deterministic kernels."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import RunConfig


@dataclass(frozen=True)
class Options:
    """How to run; none of it changes a result on one machine."""

    loader_workers: int = 0  # processes that read and augment images
    checkpoint_seconds: float = 30.0  # at most this much work is lost by a kill; 0 writes after every step
    trackers: tuple[str, ...] = ()  # accelerate's: tensorboard, wandb, mlflow
    cpu: bool = False  # leave the GPU alone


def memory() -> int:
    """Return the most memory taken so far, in MiB: the GPU's where there is one, else the process's."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated() // 2**20)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most // (2**20 if sys.platform == "darwin" else 2**10))


def on_cpu(options: Options) -> bool:
    """Whether to tell accelerate to use the CPU: asked to, or several processes launched without any GPU.

    Left to itself, accelerate takes each of those for a run of its own.
    """
    return options.cpu or ("LOCAL_RANK" in os.environ and not torch.accelerator.is_available())


def make_accelerator(config: RunConfig, options: Options, folder: Path) -> Any:
    """Return accelerate's view of this process: device, precision, launch, trackers."""
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.utils import GradientAccumulationPlugin
    except ImportError as error:
        raise UserError("training needs accelerate: pip install accelerate") from error

    check_environment(config.numerics.compile)
    _forget(AcceleratorState, config)
    try:
        accelerator = Accelerator(
            mixed_precision=config.numerics.precision,
            cpu=on_cpu(options),
            # pinned, because accelerate reads both from the environment where they are left out
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            dynamo_backend="inductor" if config.numerics.compile else "no",
            log_with=list(options.trackers) or None,
            project_dir=str(folder) if options.trackers else None,
            step_scheduler_with_optimizer=False,
        )
    except ValueError as error:
        raise UserError(f"accelerate refuses this set-up: {error}") from error
    if accelerator.num_processes > 1:
        atexit.register(_leave_group)
    if options.trackers:
        plain = {k: v for k, v in config.settings.items() if isinstance(v, int | float | str | bool)}
        run_name = f"{config.arm.name} seed {config.seed}"
        accelerator.init_trackers(
            config.study,
            config={**plain, "arm": config.arm.name, "seed": config.seed},
            # these name a run at random otherwise, and the arms cannot be told apart
            init_kwargs={
                "trackio": {"name": run_name},
                "wandb": {"name": run_name},
                "mlflow": {"run_name": run_name},
                "swanlab": {"experiment_name": run_name},
            },
        )
    return accelerator


# What accelerate reads from the environment and would change numbers under the same run id, with the values
# that change nothing (`accelerate launch` sets most of them to these).
_NEUTRAL = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("1",),
    "ACCELERATE_DYNAMO_BACKEND": ("no",),
    "ACCELERATE_DYNAMO_MODE": ("default",),
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": ("false", "0"),
    "ACCELERATE_DYNAMO_USE_DYNAMIC": ("false", "0"),
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": ("false", "0"),
    "ACCELERATE_USE_DEEPSPEED": ("false", "0"),
    "ACCELERATE_USE_MEGATRON_LM": ("false", "0"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("false", "0"),
}


def check_environment(compiled: bool) -> None:
    """Refuse environment variables of accelerate that would change a run's numbers but not its identifier."""
    for name, neutral in _NEUTRAL.items():
        value = os.environ.get(name, "").lower()
        allowed = (*neutral, "inductor") if compiled and name == "ACCELERATE_DYNAMO_BACKEND" else neutral
        if value and value not in allowed:
            raise UserError(
                f"the environment variable {name}={os.environ[name]} would change results under the same run "
                "identifier: unset it (--compile and --precision change numerics)"
            )


def _leave_group() -> None:
    """Take leave of the other processes; torch's threads, left to themselves, may abort the interpreter's end."""
    if torch.distributed.is_initialized():
        gc.collect()  # wrapped models hold the group, and with it its threads
        torch.distributed.destroy_process_group()


def _forget(state: Any, config: RunConfig) -> None:
    """Let accelerate set itself up anew where the last run of this process differed in precision or compiling.

    Only then: under FSDP it cannot do so twice.
    """
    known = state._shared_state
    if not known:
        return
    compiled = str(known["dynamo_plugin"].backend).upper().endswith("INDUCTOR")
    if (known["_mixed_precision"], compiled) == (config.numerics.precision, config.numerics.compile):
        return
    if str(known["distributed_type"]).endswith("FSDP"):
        raise UserError("runs under FSDP must not differ in precision or compiling: launch them one by one")
    state._reset_state()


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for deterministic kernels while a run is on; an operation that has none goes on without."""
    # not use_deterministic_algorithms, which does the same after importing the whole compiler (4 s)
    mode = torch.get_deterministic_debug_mode()
    memory_options: Any = torch.utils.deterministic  # a module whose attributes mypy does not see
    fill = memory_options.fill_uninitialized_memory
    benchmark = torch.backends.cudnn.benchmark
    torch.set_deterministic_debug_mode("warn")
    memory_options.fill_uninitialized_memory = False
    if benchmark:  # set only where it must change: torch refuses any setting after disable_global_flags
        torch.backends.cudnn.benchmark = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        memory_options.fill_uninitialized_memory = fill
        if benchmark:
            torch.backends.cudnn.benchmark = True
