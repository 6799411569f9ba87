"""Everything a run needs to continue as if it had never stopped, in one file that is replaced atomically.

One file whatever the launch: sharded parameters (FSDP2) are gathered, so a run begun on one machine can continue
on another. It holds the state of every random generator of every process.

The file is torch's zip format followed by a footer: the SHA-256 of all bytes before it, and a marker. The run's
identifier is inside, so that the file of another run is refused.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import torch

from gradcent_lab.data import random_streams
from gradcent_lab.errors import UserError
from gradcent_lab.store.atomic_files import Damaged, write_atomically

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

MARKER = b"gradcent-checkpoint-1\n"
_FOOTER = hashlib.sha256().digest_size + len(MARKER)


def save(
    path: Path,
    run_id: str,
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    position: dict[str, Any],
    sums: list[float],
) -> None:
    """Write the checkpoint. All processes call it, the first writes; `sums` differ between processes.

    The caller waits for the first process, which may fail to write.
    """
    weights, state = _states(accelerator, model, optimizer)
    document = {
        "run_id": run_id,
        "model": weights,
        "optimizer": state,
        "scheduler": scheduler.state_dict() if scheduler is not None else None,
        "scaler": accelerator.scaler.state_dict() if accelerator.scaler is not None else None,
        "processes": _gather(accelerator, {"generators": random_streams.capture(), "sums": sums}),
        "position": position,
    }
    if accelerator.is_main_process:
        write_atomically(path, lambda stream: write_document(stream, document))


def load(
    path: Path,
    run_id: str,
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
) -> tuple[dict[str, Any], list[float]]:
    """Restore everything and return the position and this process's sums."""
    document = read_document(path, run_id)
    try:
        processes = document["processes"]
        if len(processes) != accelerator.num_processes:
            raise UserError(
                f"{path} was written by {len(processes)} processes and cannot continue bit for bit with "
                f"{accelerator.num_processes}: launch {len(processes)}, or delete it to start the run again"
            )
        _load_states(accelerator, model, optimizer, document["model"], document["optimizer"])
        if scheduler is not None:  # whose load_state_dict accepts anything
            if document["scheduler"].keys() != scheduler.state_dict().keys():
                raise damaged(path, "the state of the scheduler has other fields")
            scheduler.load_state_dict(document["scheduler"])
        if accelerator.scaler is not None:
            accelerator.scaler.load_state_dict(document["scaler"])
        state = processes[accelerator.process_index]
        random_streams.restore(state["generators"])
        return dict(document["position"]), [float(value) for value in state["sums"]]
    except UserError:
        raise
    except Exception as error:  # every kind of state that does not fit
        raise damaged(path, error) from error


def write_document(stream: BinaryIO, document: dict[str, Any]) -> None:
    """Write `document` in torch's format, then the footer."""
    hashing = _HashingWriter(stream)
    torch.save(document, cast("BinaryIO", hashing))  # torch.save calls write and flush only
    stream.write(hashing.digest.digest() + MARKER)


def read_document(path: Path, run_id: str) -> dict[str, Any]:
    """Check footer and run and return the document; only tensors and plain values are unpickled."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}): check the disk, or delete the file"
        ) from error
    payload, footer = content[:-_FOOTER], content[-_FOOTER:]
    if footer != hashlib.sha256(payload).digest() + MARKER:
        raise damaged(path, "its checksum does not match")
    try:
        document = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever pickle and zip report
        raise damaged(path, error) from error
    if not isinstance(document, dict):
        raise damaged(path, "it holds no checkpoint")
    if document.get("run_id") != run_id:
        raise Damaged(f"{path} is the checkpoint of another run: delete it, and the run starts again")
    return document


def damaged(path: Path, reason: object) -> Damaged:
    """Return the error for a checkpoint that cannot be continued from."""
    if isinstance(reason, BaseException):
        lines = str(reason).splitlines() or [""]
        reason = f"{type(reason).__name__}: {lines[0][:120]}"
    return Damaged(f"{path} is damaged: delete it, and the run starts again ({reason})")


class _HashingWriter(io.RawIOBase):
    """Passes writes on and hashes them, so that the file need not be read again."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        """Write and hash `content`."""
        view = memoryview(content)
        self.digest.update(view)
        self._stream.write(view)
        return view.nbytes


def _sharded(accelerator: Accelerator) -> bool:
    return str(accelerator.distributed_type).endswith("FSDP")


def _states(
    accelerator: Accelerator, model: nn.Module, optimizer: Optimizer
) -> tuple[dict[str, Any], dict[str, Any]]:
    if not _sharded(accelerator):
        return model.state_dict(), optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def _load_states(
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
