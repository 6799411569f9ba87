"""DTensors in torch's LocalTensor mode, in which one process simulates all ranks; torch's own DTensor tests use it.

The truth is the same optimizer, with GC, on the model that is not sharded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradcent

local_tensor = pytest.importorskip(
    "torch.distributed._local_tensor", reason="this torch has no LocalTensor mode"
)
tensor = pytest.importorskip("torch.distributed.tensor")
WORLD = 4

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def mesh() -> Iterator[Any]:
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    torch.autograd._enable_record_function(False)
    dist.init_process_group("fake", rank=0, world_size=WORLD)
    try:
        yield tensor.init_device_mesh("cpu", (WORLD,))
    finally:
        dist.destroy_process_group()
        torch.autograd._enable_record_function(True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def shard(model: nn.Module, mesh: Any, dim: int) -> nn.Module:
    """Shard every weight along `dim` and every bias along dim 0."""

    def shard_layer(name: str, module: nn.Module, mesh: Any) -> None:
        for name, param in list(module.named_parameters(recurse=False)):
            placements = [tensor.Shard(min(dim, param.ndim - 1))]
            sharded = nn.Parameter(tensor.distribute_tensor(param, mesh, placements))
            module.register_parameter(name, sharded)

    return tensor.distribute_module(model, mesh, shard_layer)


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "foreach": False}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.05, "amsgrad": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.05, "foreach": False}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.05, "fused": True}),
    ("Adam", {"lr": torch.tensor(0.1), "fused": True}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.05}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.05, "fused": True, "maximize": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.02, "weight_decay": 0.05}),
    ("RMSprop", {"lr": 0.1, "weight_decay": 0.05, "momentum": 0.9, "centered": True}),
    ("Adadelta", {"lr": 0.1, "weight_decay": 0.05}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.05}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.05}),
    ("Adamax", {"lr": 0.1, "weight_decay": 0.05}),
    ("ASGD", {"lr": 0.1, "weight_decay": 0.05}),
]


CASES = [
    *[(name, options, dim, "gradient") for name, options in OPTIMIZERS for dim in (0, 1)],
    *[(name, options, dim, "update") for name, options in OPTIMIZERS[:2] for dim in (0, 1)],
]


@pytest.mark.parametrize(("name", "options", "dim", "at"), CASES, ids=str)
def test_sharded_steps_equal_whole_ones(
    mesh: Any, name: str, options: dict[str, Any], dim: int, at: Any
) -> None:
    torch.manual_seed(0)
    whole = Net()
    start, gradients, x = copy.deepcopy(whole), [], torch.randn(8, 10)
    make = getattr(torch.optim, name)
    # Outside of the mode: there an operation on a plain tensor runs once per rank.
    optimizer = gradcent.attach(make(whole.parameters(), **options), whole, at=at)
    for _ in range(2):
        optimizer.zero_grad()
        whole(x).square().sum().backward()
        gradients.append([param.grad.clone() for param in whole.parameters()])
        optimizer.step()
    with local_tensor.LocalTensorMode(WORLD):
        sharded = shard(start, mesh, dim)
        optimizer = gradcent.attach(make(sharded.parameters(), **options), sharded, at=at)
        for grads in gradients:
            for param, grad in zip(sharded.parameters(), grads, strict=True):
                param.grad = tensor.distribute_tensor(grad, mesh, param.placements)
            optimizer.step()
        results = [param.full_tensor().detach().reconcile() for param in sharded.parameters()]
        assert all(param.placements == param.grad.placements for param in sharded.parameters())
    for param, result in zip(whole.parameters(), results, strict=True):
        torch.testing.assert_close(result, param.detach(), rtol=1e-5, atol=1e-5)
