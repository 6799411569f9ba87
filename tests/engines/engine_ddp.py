"""DistributedDataParallel: accumulation, static graph, communication hooks; ZeroRedundancyOptimizer."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.distributed as dist
from engine_harness import case, refused
from engine_truth import OPTIMIZERS, OVERRIDES, batches, difference, loss_of, model, reference
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import gradcent


def mine(x: Tensor) -> Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("module."): each.detach() for name, each in net.named_parameters()}


def train(net: nn.Module, step_with: Any, *, accumulate: int = 1) -> None:
    """Train on this rank's part of each batch, in so many backward passes."""
    for x, y in batches():
        step_with.zero_grad()
        parts = list(zip(mine(x).chunk(accumulate), mine(y).chunk(accumulate), strict=True))
        for number, (a, b) in enumerate(parts):
            last = number == len(parts) - 1
            with contextlib.nullcontext() if last else net.no_sync():  # type: ignore[operator]
                (loss_of(net, a, b) / accumulate).backward()
        step_with.step()


for _name, _optimizer, _at, _options in (
    ("ddp-sgd", "sgd", "gradient", {}),
    ("ddp-sgd-update", "sgd", "update", {}),
    ("ddp-adam", "adam", "gradient", {}),
    ("ddp-adamw-update", "adamw", "update", {}),
    ("ddp-no-sync", "sgd", "gradient", {"accumulate": 2}),
    ("ddp-static-graph", "sgd", "gradient", {"static_graph": True}),
    ("ddp-hook", "sgd", "gradient", {"communication_hook": True}),
    ("ddp-bucket-view", "sgd", "gradient", {"gradient_as_bucket_view": True}),
):

    @case(
        _name,
        "DistributedDataParallel",
        f"{_optimizer}, at the {_at}" + "".join(f", {key}" for key in _options),
        limit=1e-9 if "adam" in _optimizer else 1e-12,
        optimizer=_optimizer,
        at=_at,
        **_options,
    )
    def ddp(
        optimizer: str, at: str, accumulate: int = 1, communication_hook: bool = False, **options: Any
    ) -> dict[str, Any]:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        start = model()
        net = DistributedDataParallel(copy.deepcopy(start), **options)
        if communication_hook:
            net.register_comm_hook(None, allreduce_hook)
        step_with = gradcent.attach(OPTIMIZERS[optimizer](net.parameters()), net, at=at, overrides=OVERRIDES)
        train(net, step_with, accumulate=accumulate)
        return {"difference": difference(weights(net), reference(start, optimizer, at))}


@case("ddp-gradients", "DistributedDataParallel", "attach_to_gradients, no_sync accumulation, without decay")
def ddp_gradients() -> dict[str, Any]:
    start = model()
    net = copy.deepcopy(start)
    gradcent.attach_to_gradients(net, overrides=OVERRIDES)
    wrapped = DistributedDataParallel(net)
    step_with = OPTIMIZERS["sgd_plain"](wrapped.parameters())
    train(wrapped, step_with, accumulate=2)
    return {"difference": difference(weights(wrapped), reference(start, "sgd_plain", "gradient"))}


@case("zero-redundancy", "ZeroRedundancyOptimizer", "attach to its inner optimizer `.optim` on every rank")
@case("zero-redundancy-update", "ZeroRedundancyOptimizer", "the same at the update", at="update")
def zero_redundancy(at: str = "gradient") -> dict[str, Any]:
    start = model()
    net = DistributedDataParallel(copy.deepcopy(start))
    outer = ZeroRedundancyOptimizer(
        net.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.05
    )
    refused(TypeError, "optimizer.optim", lambda: gradcent.attach(outer, net, overrides=OVERRIDES))
    gradcent.attach(outer.optim, net, at=at, overrides=OVERRIDES)
    train(net, outer)
    return {"difference": difference(weights(net), reference(start, "sgd", at))}


@case("ddp-nonfinite", "DistributedDataParallel", 'nonfinite="skip_step": inf on one rank skips on all')
def nonfinite() -> dict[str, Any]:
    start = model()
    net = copy.deepcopy(start)  # not wrapped: nothing averages, so only one rank sees the inf
    step_with = gradcent.attach(
        OPTIMIZERS["sgd"](net.parameters()), net, overrides=OVERRIDES, nonfinite="skip_step"
    )
    x, y = next(iter(batches()))
    loss_of(net, x, y).backward()
    if dist.get_rank() == 1:
        net.fc.weight.grad[0, 0] = float("inf")
    step_with.step()
    attachment = gradcent.attached(step_with)
    assert attachment is not None
    assert attachment.skipped_steps == 1
    return {"difference": difference(weights(net), weights(start))}


@case("ddp-scaler", "DistributedDataParallel", "a GradScaler that saw inf on one rank only: nobody waits")
def scaler_and_policy() -> dict[str, Any]:
    """The check of non-finite gradients is a collective: also a rank that knows better has to take part."""
    start = model(dtype=torch.float32)
    net = copy.deepcopy(start)  # not wrapped: only one rank sees the inf
    step_with = gradcent.attach(
        OPTIMIZERS["adamw_fused"](net.parameters()), net, overrides=OVERRIDES, nonfinite="skip_step"
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x, y = next(iter(batches(dtype=torch.float32)))
    scaler.scale(loss_of(net, x, y)).backward()
    if dist.get_rank() == 1:
        net.fc.weight.grad[0, 0] = float("inf")
    scaler.step(step_with)
    attachment = gradcent.attached(step_with)
    assert attachment is not None
    assert attachment.skipped_steps == (1 if dist.get_rank() == 0 else 0)  # rank 1's was the scaler's doing
    return {"difference": difference(weights(net), weights(start))}


@case("ddp-no-gradients", "DistributedDataParallel", "a rank without any gradient takes part in the check")
def no_gradients() -> dict[str, Any]:
    start = model()
    net = copy.deepcopy(start)
    step_with = gradcent.attach(
        OPTIMIZERS["sgd"](net.parameters()), net, overrides=OVERRIDES, nonfinite="skip_step"
    )
    x, y = next(iter(batches()))
    if dist.get_rank() == 0:
        loss_of(net, x, y).backward()
        net.fc.weight.grad[0, 0] = float("nan")
    step_with.step()
    return {"difference": difference(weights(net), weights(start))}
