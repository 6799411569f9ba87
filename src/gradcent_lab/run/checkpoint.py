"""Everything a run needs to go on as if it had never stopped, in one file that is replaced atomically.

One file whatever the launch: sharded parameters (FSDP2) are gathered, so a run begun on one machine can go on
on another. The state of every random generator of every process is in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradcent_lab.data import random_streams as seeds
from gradcent_lab.errors import UserError
from gradcent_lab.store.atomic_files import write_atomically

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


def save(
    path: Path,
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    position: dict[str, Any],
    sums: list[float],
) -> None:
    """Write the checkpoint. Called by all processes, written by the first; `sums` are each one's own."""
    weights, state = _states(accelerator, model, optimizer)
    document = {
        "model": weights,
        "optimizer": state,
        "scheduler": scheduler.state_dict() if scheduler is not None else None,
        "scaler": accelerator.scaler.state_dict() if accelerator.scaler is not None else None,
        "processes": _gather(accelerator, {"generators": seeds.capture(), "sums": sums}),
        "position": position,
    }
    if accelerator.is_main_process:
        write_atomically(path, lambda stream: torch.save(document, stream))
    accelerator.wait_for_everyone()


def load(
    path: Path,
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
) -> tuple[dict[str, Any], list[float]]:
    """Put everything back and return the position and this process's sums."""
    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever pickle or zip say about a damaged file
        raise UserError(f"{path} is damaged: delete it, and the run starts again") from error
    processes = document["processes"]
    if len(processes) != accelerator.num_processes:
        raise UserError(
            f"{path} was written by {len(processes)} processes and cannot go on bit for bit with "
            f"{accelerator.num_processes}: launch {len(processes)}, or delete it to start the run again"
        )
    _put(accelerator, model, optimizer, document["model"], document["optimizer"])
    if scheduler is not None:
        scheduler.load_state_dict(document["scheduler"])
    if accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(document["scaler"])
    mine = processes[accelerator.process_index]
    seeds.restore(mine["generators"])
    return document["position"], mine["sums"]


def _sharded(accelerator: Accelerator) -> bool:
    return str(accelerator.distributed_type).endswith("FSDP")


def _states(
    accelerator: Accelerator, model: nn.Module, optimizer: Optimizer
) -> tuple[dict[str, Any], dict[str, Any]]:
    if not _sharded(accelerator):
        return model.state_dict(), optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def _put(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    weights: dict[str, Any],
    state: dict[str, Any],
) -> None:
    if not _sharded(accelerator):
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    set_state_dict(
        model,
        optimizer,
        model_state_dict=weights,
        optim_state_dict=state,
        options=StateDictOptions(full_state_dict=True),
    )


def _gather(accelerator: Accelerator, state: dict[str, Any]) -> list[dict[str, Any]]:
    if accelerator.num_processes == 1:
        return [state]
    gathered: list[Any] = [None] * accelerator.num_processes
    torch.distributed.all_gather_object(gathered, state)
    return gathered
