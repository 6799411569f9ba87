"""Tensor parallel, column- and row-wise, and FSDP2 over it."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from engine_fsdp2 import whole
from engine_harness import case
from engine_truth import OPTIMIZERS, Feedforward, batches, difference, loss_of, model, reference
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gradcent


def parallel(net: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(net, mesh, {"up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()})


def train(net: nn.Module, step_with: Any, rank: int, world: int) -> int:
    """Train on this rank's part of each batch; return the collectives of one step."""
    counts = []
    for x, y in batches(Feedforward):
        step_with.zero_grad()
        loss_of(net, x.chunk(world)[rank], y.chunk(world)[rank]).backward()
        placed = {id(p): p.grad.placements for p in net.parameters() if isinstance(p.grad, DTensor)}
        with CommDebugMode() as mode:
            step_with.step()
        counts.append(mode.get_total_counts())
        for parameter in net.parameters():
            for state in step_with.state[parameter].values():
                if isinstance(state, DTensor) and state.ndim:
                    assert state.placements == placed[id(parameter)]
    assert len(set(counts)) == 1, counts
    return counts[0]


def optimizer_of(net: nn.Module, name: str, at: str) -> Any:
    # torch's foreach and fused steps refuse lists that mix DTensors and tensors, with or without GC
    step_with = OPTIMIZERS[name](net.parameters())
    mixed = len({isinstance(each, DTensor) for each in net.parameters()}) > 1
    for group in step_with.param_groups:
        group["foreach"] = False if mixed else group["foreach"]
    return gradcent.attach(step_with, net, at=at)


for _optimizer, _at in (("sgd", "gradient"), ("sgd", "update"), ("adam", "gradient"), ("adamw", "update")):
    _limit = 1e-9 if "adam" in _optimizer else 1e-12

    @case(
        f"tp-{_optimizer}-{_at}",
        "tensor parallel",
        f"{_optimizer}, at the {_at}: column- and row-wise; one reduction for the row-wise weight",
        limit=_limit,
        optimizer=_optimizer,
        at=_at,
    )
    def tensor_parallel(optimizer: str, at: str) -> dict[str, Any]:
        start = model(Feedforward)
        net = parallel(copy.deepcopy(start), init_device_mesh("cpu", (dist.get_world_size(),)))
        step_with = optimizer_of(net, optimizer, at)
        counted = train(net, step_with, 0, 1)
        assert counted == (2 if at == "gradient" else 1), counted  # float64: two passes at the gradient
        return {"difference": difference(whole(net), reference(start, optimizer, at)), "collectives": counted}

    @case(
        f"tp-fsdp2-{_optimizer}-{_at}",
        "tensor parallel + FSDP2",
        f"{_optimizer}, at the {_at}: 2×2 mesh, FSDP2 over tensor parallel",
        limit=_limit,
        world=4,
        optimizer=_optimizer,
        at=_at,
    )
    def both(optimizer: str, at: str) -> dict[str, Any]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
        start = model(Feedforward)
        net = parallel(copy.deepcopy(start), mesh["model"])
        for each in (net.up_proj, net.down_proj, net):
            fully_shard(each, mesh=mesh["data"])
        step_with = OPTIMIZERS[optimizer](
            [
                {"params": [p for n, p in net.named_parameters() if "proj" in n]},
                {"params": [p for n, p in net.named_parameters() if "proj" not in n]},
            ]
        )
        gradcent.attach(step_with, net, at=at)
        train(net, step_with, mesh.get_local_rank("data"), 2)
        return {"difference": difference(whole(net), reference(start, optimizer, at))}


@case(
    "tp-gradients", "tensor parallel", "attach_to_gradients, before or after parallelize_module", limit=1e-12
)
def on_gradients() -> dict[str, Any]:
    found = 0.0
    for before in (True, False):
        start = model(Feedforward)
        net = copy.deepcopy(start)
        if before:
            gradcent.attach_to_gradients(net)
        net = parallel(net, init_device_mesh("cpu", (dist.get_world_size(),)))
        if not before:
            gradcent.attach_to_gradients(net)
        step_with = OPTIMIZERS["sgd_plain"](net.parameters())
        step_with.param_groups[0]["foreach"] = False
        for x, y in batches(Feedforward):
            step_with.zero_grad()
            loss_of(net, x, y).backward()
            for each in net.parameters():
                if isinstance(each, DTensor):
                    assert each.grad.placements == each.placements
            step_with.step()
        found = max(found, difference(whole(net), reference(start, "sgd_plain", "gradient")))
    return {"difference": found}


@case(
    "dtensor-gradients", "tensor parallel", "attach_to_gradients on a cut transposed convolution", limit=1e-12
)
def cut_on_gradients() -> dict[str, Any]:
    """A weight whose groups the border of a shard cuts, in a model distributed by hand."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    whole_weight = torch.randn(6, 2, 2, 2, dtype=torch.float64)  # 3 groups of 2 over 2 ranks: 3 rows each
    net = nn.ConvTranspose2d(6, 6, 2, groups=3, bias=False).double()
    net.weight = nn.Parameter(distribute_tensor(whole_weight, mesh, [Shard(0)]))
    gradcent.attach_to_gradients(net)
    factor = distribute_tensor(torch.randn(6, 2, 2, 2, dtype=torch.float64), mesh, [Shard(0)])
    (net.weight * factor).sum().backward()
    got = net.weight.grad
    assert got.placements == (Shard(0),)
    groups = factor.full_tensor().view(3, 2, 2, 2, 2)
    expected = (groups - groups.mean((1, 3, 4), keepdim=True)).reshape(6, 2, 2, 2)
    return {"difference": (got.full_tensor() - expected).abs().max().item()}
