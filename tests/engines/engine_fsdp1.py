"""FSDP1, whose flat parameters `attach` refuses and `attach_to_gradients` reaches, and ZeRO-style flattening."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from engine_ddp import mine, weights
from engine_harness import case, refused
from engine_truth import OPTIMIZERS, OVERRIDES, Net, batches, difference, loss_of, model, reference
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import gradcent


def full(net: nn.Module) -> dict[str, torch.Tensor]:
    with FullyShardedDataParallel.summon_full_params(net):
        return {
            name.replace("_fsdp_wrapped_module.", ""): each.detach().clone()
            for name, each in net.named_parameters()
        }


for _original in (True, False):
    for _strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):

        @case(
            f"fsdp1-{_strategy.lower()}-{'original' if _original else 'flat'}",
            "FSDP1",
            f"use_orig_params={_original}, {_strategy}: attach refuses, attach_to_gradients before wrapping",
            limit=1e-12,
            original=_original,
            strategy=_strategy,
        )
        def fsdp1(original: bool, strategy: str) -> dict[str, Any]:
            start = model()
            net = copy.deepcopy(start)
            gradcent.attach_to_gradients(net, overrides=OVERRIDES)
            wrapped = FullyShardedDataParallel(
                net,
                auto_wrap_policy=ModuleWrapPolicy({nn.Linear, nn.ConvTranspose2d}),
                use_orig_params=original,
                sharding_strategy=ShardingStrategy[strategy],
                device_id=torch.device("cpu"),
            )
            step_with = OPTIMIZERS["sgd_plain"](wrapped.parameters())
            refused(TypeError, "attach_to_gradients", lambda: gradcent.attach(step_with, wrapped))
            refused(
                TypeError, "attach_to_gradients", lambda: gradcent.attach(step_with, net)
            )  # the inner one
            refused(TypeError, "before wrapping", lambda: gradcent.attach_to_gradients(wrapped))
            for x, y in batches():
                step_with.zero_grad()
                loss_of(wrapped, mine(x), mine(y)).backward()
                step_with.step()
            return {"difference": difference(full(wrapped), reference(start, "sgd_plain", "gradient"))}


@case(
    "fsdp1-checkpointing", "FSDP1", "with activation checkpointing (recomputed forward passes)", limit=1e-12
)
def checkpointing() -> dict[str, Any]:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]

    start = model()
    net = Recomputed().double()
    net.load_state_dict(start.state_dict())
    gradcent.attach_to_gradients(net, overrides=OVERRIDES)
    wrapped = FullyShardedDataParallel(net, use_orig_params=False, device_id=torch.device("cpu"))
    step_with = OPTIMIZERS["sgd_plain"](wrapped.parameters())
    for x, y in batches():
        step_with.zero_grad()
        loss_of(wrapped, mine(x), mine(y)).backward()
        step_with.step()
    return {"difference": difference(full(wrapped), reference(start, "sgd_plain", "gradient"))}


@case(
    "fsdp2-gradients",
    "FSDP2 fully_shard",
    "attach_to_gradients, called before or after sharding",
    limit=1e-12,
)
def fsdp2_gradients() -> dict[str, Any]:
    from engine_fsdp2 import sharded, whole
    from torch.distributed.fsdp import fully_shard

    start = model()
    seen = []
    for before in (True, False):
        net = copy.deepcopy(start)
        if before:
            gradcent.attach_to_gradients(net, overrides=OVERRIDES)
            for name in ("conv", "up", "fc"):
                fully_shard(getattr(net, name))
            fully_shard(net)
        else:
            net = sharded(net)
            gradcent.attach_to_gradients(net, overrides=OVERRIDES)
        step_with = OPTIMIZERS["sgd_plain"](net.parameters())
        for x, y in batches():
            step_with.zero_grad()
            loss_of(net, mine(x), mine(y)).backward()
            step_with.step()
        seen.append(difference(whole(net), reference(start, "sgd_plain", "gradient")))
    return {"difference": max(seen)}


@case(
    "zero-imitated",
    "ZeRO-style flat parameters",
    "a flat optimizer over reduced, flattened gradients",
    limit=1e-12,
)
def zero_imitated() -> dict[str, Any]:
    """What ZeRO 1 and 2 do: reduce gradients, flatten, each rank steps its slice of one flat master copy."""
    start = model()
    net = copy.deepcopy(start)
    gradcent.attach_to_gradients(net, overrides=OVERRIDES)
    rank, world = dist.get_rank(), dist.get_world_size()
    parameters = list(net.parameters())
    flat = torch.cat([each.detach().reshape(-1) for each in parameters])
    size = -(-len(flat) // world)
    padding = torch.zeros(size * world - len(flat), dtype=flat.dtype)
    flat = torch.cat([flat, padding])
    slice_ = flat[rank * size : (rank + 1) * size].clone().requires_grad_()
    step_with = OPTIMIZERS["sgd_plain"]([slice_])
    for x, y in batches():
        for each in parameters:
            each.grad = None
        loss_of(net, mine(x), mine(y)).backward()
        gradient = torch.cat([*(each.grad.reshape(-1) for each in parameters), padding])
        dist.all_reduce(gradient)
        slice_.grad = (gradient / world)[rank * size : (rank + 1) * size]
        step_with.step()
        pieces = [torch.zeros(size, dtype=flat.dtype) for _ in range(world)]
        dist.all_gather(pieces, slice_.detach())
        with torch.no_grad():
            for each, piece in zip(
                parameters,
                torch.cat(pieces).split([*(p.numel() for p in parameters), len(padding)])[:-1],
                strict=True,
            ):
                each.copy_(piece.view_as(each))
    return {"difference": difference(weights(net), reference(start, "sgd_plain", "gradient"))}
