"""torch.distributed.checkpoint: save on 2 processes, load on 1 and the reverse; training goes on unchanged."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from engine_ddp import mine
from engine_fsdp2 import sharded, whole
from engine_harness import case
from engine_truth import OPTIMIZERS, OVERRIDES, batches, difference, loss_of, model, reference
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import gradcent

HALF = 10


@contextmanager
def shared_folder() -> Iterator[str]:
    """One folder that all ranks know."""
    with tempfile.TemporaryDirectory() as own:
        names = [own]
        dist.broadcast_object_list(names)
        yield names[0]
        dist.barrier()


def attached(net: nn.Module, optimizer: str, at: Any) -> torch.optim.Optimizer:
    return gradcent.attach(OPTIMIZERS[optimizer](net.parameters()), net, at=at, overrides=OVERRIDES)


def run(net: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, split: bool) -> None:
    for number, (x, y) in enumerate(batches()):
        if first <= number < last:
            optimizer.zero_grad()
            loss_of(net, mine(x) if split else x, mine(y) if split else y).backward()
            optimizer.step()


def state_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, states = get_state_dict(net, optimizer)
    return {"model": weights, "optimizer": states}


def load(net: nn.Module, optimizer: torch.optim.Optimizer, folder: str, alone: bool) -> None:
    state = state_of(net, optimizer)  # makes empty states by a step with zero gradients and lr 0
    checkpoint.load(state, checkpoint_id=folder, no_dist=alone)
    set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


for _optimizer, _at in (("sgd", "gradient"), ("adam", "gradient"), ("adamw", "update")):
    _limit = 1e-9 if "adam" in _optimizer else 1e-12

    @case(
        f"checkpoint-2-to-1-{_optimizer}-{_at}",
        "torch.distributed.checkpoint",
        f"{_optimizer}, at the {_at}: saved by 2 processes with FSDP2, training goes on in 1",
        limit=_limit,
        optimizer=_optimizer,
        at=_at,
    )
    def two_to_one(optimizer: str, at: str) -> dict[str, Any]:
        start = model()
        with shared_folder() as folder:
            net = sharded(start)
            step_with = attached(net, optimizer, at)
            run(net, step_with, 0, HALF, split=True)
            checkpoint.save(state_of(net, step_with), checkpoint_id=folder)
            dist.barrier()
            torch.manual_seed(5)
            alone = type(start)().double()  # other weights: all must come from the checkpoint
            step_alone = attached(alone, optimizer, at)
            load(alone, step_alone, folder, alone=True)
            run(alone, step_alone, HALF, 20, split=False)
        got = {name: each.detach() for name, each in alone.named_parameters()}
        return {"difference": difference(got, reference(start, optimizer, at))}

    @case(
        f"checkpoint-1-to-2-{_optimizer}-{_at}",
        "torch.distributed.checkpoint",
        f"{_optimizer}, at the {_at}: saved by 1 process, training goes on in 2 with FSDP2",
        limit=_limit,
        optimizer=_optimizer,
        at=_at,
    )
    def one_to_two(optimizer: str, at: str) -> dict[str, Any]:
        start = model()
        with shared_folder() as folder:
            alone = copy.deepcopy(start)
            step_alone = attached(alone, optimizer, at)
            run(alone, step_alone, 0, HALF, split=False)
            if dist.get_rank() == 0:
                checkpoint.save(state_of(alone, step_alone), checkpoint_id=folder, no_dist=True)
            dist.barrier()
            torch.manual_seed(5)
            net = sharded(type(start)().double())
            step_with = attached(net, optimizer, at)
            load(net, step_with, folder, alone=False)
            run(net, step_with, HALF, 20, split=True)
        return {"difference": difference(whole(net), reference(start, optimizer, at))}


@case(
    "checkpoint-plain",
    "torch.distributed.checkpoint",
    "a checkpoint of the plain optimizer goes on with GC attached",
)
def plain_to_ours() -> dict[str, Any]:
    """State dicts move both ways: the keys are the plain optimizer's."""
    start = model()
    plain, ours = sharded(start), sharded(start)
    step_plain = OPTIMIZERS["sgd"](plain.parameters())
    run(plain, step_plain, 0, 3, split=True)
    state = get_state_dict(plain, step_plain)
    step_ours = attached(ours, "sgd", "gradient")
    mine_ = get_state_dict(ours, step_ours)[1]
    assert mine_["state"].keys() == state[1]["state"].keys()
    set_state_dict(ours, step_ours, model_state_dict=state[0], optim_state_dict=state[1])
    assert gradcent.attached(step_ours) is not None
    return {"difference": difference(whole(ours), whole(plain))}
