"""FSDP2 (`fully_shard`): uneven shards, other dims, mixed precision, CPU offload, HSDP; collectives counted."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from engine_harness import case, refused
from engine_truth import OPTIMIZERS, OVERRIDES, Net, batches, difference, loss_of, model, reference
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode

import gradcent


def whole(net: nn.Module) -> dict[str, Tensor]:
    """The full weights, on every rank."""
    return {
        name: each.full_tensor().detach() if isinstance(each, DTensor) else each.detach()
        for name, each in net.named_parameters()
    }


def mine(x: Tensor, rank: int, world: int) -> Tensor:
    return x.chunk(world)[rank]


def train(
    net: nn.Module, step_with: torch.optim.Optimizer, kind: type[nn.Module] = Net, dtype: Any = torch.float64
) -> dict[str, Any]:
    """Train on this rank's part of each batch; count the collectives of the optimizer's step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    counted = []
    for number, (x, y) in enumerate(batches(kind, dtype=dtype)):
        step_with.zero_grad()
        loss_of(net, mine(x, rank, world), mine(y, rank, world)).backward()
        placed = {id(p): p.grad.placements for p in net.parameters() if isinstance(p.grad, DTensor)}
        if number < 2:
            with CommDebugMode() as mode:
                step_with.step()
            counted.append(mode.get_total_counts())
        else:
            step_with.step()
        for parameter in net.parameters():
            for name, state in step_with.state[parameter].items():
                if isinstance(state, DTensor) and state.ndim:
                    assert state.placements == placed[id(parameter)], f"{name} lost its sharding"
    assert counted[0] == counted[1]
    return {"collectives per step": counted[0]}


def sharded(start: nn.Module, **options: Any) -> nn.Module:
    net = copy.deepcopy(start)
    for name in ("conv", "up", "fc"):
        fully_shard(getattr(net, name), **options)
    return fully_shard(net, **options)


for _optimizer in OPTIMIZERS:
    for _at in ("gradient", "update"):

        @case(
            f"fsdp2-{_optimizer}-{_at}",
            "FSDP2 fully_shard",
            f"{_optimizer}, at the {_at}: 20 steps, uneven shards, one reduction for all cut vectors",
            limit=1e-9 if "adam" in _optimizer else 1e-12,
            optimizer=_optimizer,
            at=_at,
        )
        def fsdp2(optimizer: str, at: str) -> dict[str, Any]:
            start = model()
            net = sharded(start)
            step_with = gradcent.attach(
                OPTIMIZERS[optimizer](net.parameters()), net, at=at, overrides=OVERRIDES
            )
            facts = train(net, step_with)
            # `up`, `back` and `columns` are cut by dim 0: one reduction for the three. In float64 there are
            # two passes at the gradient, because no wider type makes the first one exact.
            assert facts["collectives per step"] == (2 if at == "gradient" else 1), facts
            return {"difference": difference(whole(net), reference(start, optimizer, at)), **facts}


@case("fsdp2-no-collective", "FSDP2 fully_shard", "no communication where every vector is whole on its rank")
def no_collective() -> dict[str, Any]:
    start = nn.Sequential(nn.Conv2d(2, 9, 3), nn.Flatten(), nn.Linear(81, 3)).double()
    start.load_state_dict({name: each.sin() for name, each in start.state_dict().items()})
    net = fully_shard(copy.deepcopy(start))
    step_with = gradcent.attach(torch.optim.SGD(net.parameters(), lr=0.1), net)
    facts = train(net, step_with)
    assert facts["collectives per step"] == 0, facts
    plain = copy.deepcopy(start)
    step_plain = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x, y in batches():
        step_plain.zero_grad()
        loss_of(plain, x, y).backward()
        plain[0].weight.grad -= plain[0].weight.grad.mean((1, 2, 3), keepdim=True)
        plain[2].weight.grad -= plain[2].weight.grad.mean(1, keepdim=True)
        step_plain.step()
    truth = {name: each.detach() for name, each in plain.named_parameters()}
    return {"difference": difference(whole(net), truth), **facts}


@case("fsdp2-float32", "FSDP2 fully_shard", "float32: one reduction, to rounding", limit=2e-5)
def float32() -> dict[str, Any]:
    start = model(dtype=torch.float32)
    net = sharded(start)
    step_with = gradcent.attach(OPTIMIZERS["sgd"](net.parameters()), net, overrides=OVERRIDES)
    facts = train(net, step_with, dtype=torch.float32)
    assert facts["collectives per step"] == 1, facts
    return {
        "difference": difference(whole(net), reference(start, "sgd", "gradient", dtype=torch.float32)),
        **facts,
    }


@case("fsdp2-last-dim", "FSDP2 fully_shard", "shard_placement_fn: weights sharded on dim 1", at="gradient")
@case("fsdp2-last-dim-update", "FSDP2 fully_shard", "the same at the update", at="update")
def other_dim(at: str) -> dict[str, Any]:
    start = model()
    start.load_state_dict({name: torch.cos(each * 7) * 0.3 for name, each in start.state_dict().items()})
    net = copy.deepcopy(start)

    def place(parameter: nn.Parameter) -> Shard | None:
        # FSDP2 wants dims other than 0 to divide evenly
        even = [dim for dim in range(1, parameter.ndim) if parameter.shape[dim] % 2 == 0]
        return Shard(even[0]) if even else Shard(0)

    fully_shard(net, shard_placement_fn=place)
    assert any(p.placements == (Shard(1),) for p in net.parameters())
    step_with = gradcent.attach(OPTIMIZERS["sgd"](net.parameters()), net, at=at, overrides=OVERRIDES)
    facts = train(net, step_with)
    return {"difference": difference(whole(net), reference(start, "sgd", at)), **facts}


@case("fsdp2-offload", "FSDP2 fully_shard", "CPUOffloadPolicy")
def offload() -> dict[str, Any]:
    start = model()
    net = sharded(start, offload_policy=CPUOffloadPolicy(pin_memory=False))
    step_with = gradcent.attach(OPTIMIZERS["adam"](net.parameters()), net, overrides=OVERRIDES)
    facts = train(net, step_with)
    return {"difference": difference(whole(net), reference(start, "adam", "gradient")), **facts}


@case(
    "fsdp2-mixed",
    "FSDP2 fully_shard",
    "MixedPrecisionPolicy(bf16, reduce in float32): the step's arithmetic on the gradients as reduced",
    limit=1e-6,
)
def mixed() -> dict[str, Any]:
    """The forward pass differs from a float32 one by design: so feed the truth with the reduced gradients."""
    from engine_truth import by_hand

    start = model(dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = sharded(start, mp_policy=policy)
    truth = copy.deepcopy(start)
    step_truth = OPTIMIZERS["sgd"](truth.parameters())
    step_with = gradcent.attach(OPTIMIZERS["sgd"](net.parameters()), net, overrides=OVERRIDES)
    rank, world = dist.get_rank(), dist.get_world_size()
    for x, y in batches(dtype=torch.float32):
        step_with.zero_grad()
        loss_of(net, mine(x, rank, world), mine(y, rank, world)).backward()
        for ours, theirs in zip(net.parameters(), truth.parameters(), strict=True):
            theirs.grad = ours.grad.full_tensor().clone()
        step_with.step()
        by_hand(truth, step_truth, "gradient", 0.05)
    return {"difference": difference(whole(net), {n: p.detach() for n, p in truth.named_parameters()})}


@case("fsdp2-hsdp", "FSDP2 fully_shard", "HSDP on a 2×2 mesh", world=4, at="gradient", optimizer="sgd")
@case(
    "fsdp2-hsdp-update",
    "FSDP2 fully_shard",
    "HSDP, at the update",
    world=4,
    at="update",
    optimizer="adamw",
    limit=1e-9,
)
def hsdp(at: str, optimizer: str) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    start = model()
    net = sharded(start, mesh=mesh)
    step_with = gradcent.attach(OPTIMIZERS[optimizer](net.parameters()), net, at=at, overrides=OVERRIDES)
    facts = train(net, step_with)
    assert facts["collectives per step"] == (2 if at == "gradient" else 1), facts
    return {"difference": difference(whole(net), reference(start, optimizer, at)), **facts}


@case("fsdp2-uneven-4", "FSDP2 fully_shard", "4 ranks, some of which hold nothing of some tensors", world=4)
def uneven() -> dict[str, Any]:
    start = model()
    net = sharded(start)
    assert any(p.to_local().numel() == 0 for p in net.parameters()) or dist.get_rank() < 3
    step_with = gradcent.attach(OPTIMIZERS["sgd"](net.parameters()), net, overrides=OVERRIDES)
    facts = train(net, step_with)
    return {"difference": difference(whole(net), reference(start, "sgd", "gradient")), **facts}


@case("fsdp2-hooked", "FSDP2 fully_shard", "an optimizer gradcent does not know (hooks on p.grad)")
@case("fsdp2-hooked-update", "FSDP2 fully_shard", "the same at the update", at="update")
def hooked(at: str = "gradient") -> dict[str, Any]:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    start = model()
    net = sharded(start)
    own = Own(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05)
    step_with = gradcent.attach(own, net, at=at, decay="coupled", overrides=OVERRIDES)
    facts = train(net, step_with)
    return {"difference": difference(whole(net), reference(start, "sgd", at)), **facts}


@case(
    "fsdp2-mid-training",
    "FSDP2 fully_shard",
    "attached in mid-training on 4 ranks, some with empty shards",
    world=4,
)
def mid_training() -> dict[str, Any]:
    """Attaching looks at the momentum that is there: each rank for itself, or one without any stalls the rest."""
    from engine_truth import by_hand

    start = model()
    net, truth = sharded(start), copy.deepcopy(start)
    step_with, step_truth = OPTIMIZERS["sgd"](net.parameters()), OPTIMIZERS["sgd"](truth.parameters())
    rank, world = dist.get_rank(), dist.get_world_size()
    for number, (x, y) in enumerate(batches()):
        if number == 5:
            gradcent.attach(step_with, net, overrides=OVERRIDES)
        step_with.zero_grad()
        loss_of(net, mine(x, rank, world), mine(y, rank, world)).backward()
        step_with.step()
        step_truth.zero_grad()
        loss_of(truth, x, y).backward()
        if number < 5:
            step_truth.step()
        else:
            by_hand(truth, step_truth, "gradient", 0.05)
    return {"difference": difference(whole(net), {n: p.detach() for n, p in truth.named_parameters()})}


@case(
    "fsdp2-compiled",
    "FSDP2 fully_shard",
    "a compiled step is refused, the compiled model goes on",
    limit=1e-12,
)
def compiled() -> dict[str, Any]:
    start = model()
    net = sharded(start)
    forward = torch.compile(net, backend="eager")
    step_with = gradcent.attach(OPTIMIZERS["sgd"](net.parameters()), net, overrides=OVERRIDES)
    step = torch.compile(step_with.step, backend="eager")
    rank, world = dist.get_rank(), dist.get_world_size()
    for x, y in batches():
        step_with.zero_grad()
        loss_of(forward, mine(x, rank, world), mine(y, rank, world)).backward()
        refused(Exception, "compile the model alone", step)  # Dynamo wraps the error in one of its own
        step_with.step()
    return {"difference": difference(whole(net), reference(start, "sgd", "gradient"))}


class Everything(Net):
    """A layer that no forward pass uses, beside the others."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.ConvTranspose2d(4, 5, 2)


for _at in ("gradient", "update"):

    @case(
        f"fsdp2-everything-{_at}",
        "FSDP2 fully_shard",
        f"at the {_at}: param groups with different decay, one switched off, accumulation without sync, "
        f"a frozen layer, an unused one{'; kernel=native on the shards' if _at == 'gradient' else ''}",
        at=_at,
    )
    def everything(at: Any) -> dict[str, Any]:
        """The truth is one process with gradcent itself, which is tested against the equations elsewhere."""

        def groups(net: nn.Module) -> list[dict[str, Any]]:
            named = dict(net.named_parameters())
            first = [each for name, each in named.items() if name.startswith(("conv", "up", "unused"))]
            last = [named["head.weight"], named["head.bias"]]
            seen = {id(each) for each in (*first, *last)}
            rest = [each for each in named.values() if id(each) not in seen]
            return [
                {"params": first, "weight_decay": 0.1},
                {"params": last, "weight_decay": 0.2, "centralize": False},
                {"params": rest, "weight_decay": 0.0},
            ]

        def made(net: nn.Module) -> torch.optim.Optimizer:
            net.grouped.requires_grad_(False)
            optimizer = torch.optim.Adam(groups(net), lr=0.01, foreach=True)
            kernel = "native" if at == "gradient" else "auto"  # torch's foreach step is not ours to project
            return gradcent.attach(optimizer, net, at=at, overrides=OVERRIDES, kernel=kernel)

        torch.manual_seed(0)
        start = Everything().double()
        start.grouped.requires_grad_(False)
        net, truth = sharded(start), copy.deepcopy(start)
        step_with, step_truth = made(net), made(truth)
        rank, world = dist.get_rank(), dist.get_world_size()
        for number, (x, y) in enumerate(batches()):
            last = number % 2 == 1
            net.set_requires_gradient_sync(last)
            loss_of(net, mine(x, rank, world), mine(y, rank, world)).backward()
            loss_of(truth, x, y).backward()
            if last:
                for each in (step_with, step_truth):
                    each.step()
                    each.zero_grad()
        assert net.unused.weight.grad is None
        return {"difference": difference(whole(net), {n: p.detach() for n, p in truth.named_parameters()})}


@case(
    "fsdp2-example",
    "FSDP2 fully_shard",
    "layouts traced from an example before sharding; an example after sharding is refused in one line",
)
def traced_before_sharding() -> dict[str, Any]:
    """No override tells the layout of `columns`: the trace finds it."""
    start = model()
    x = next(iter(batches()))[0]
    plan = gradcent.explain(start, example=x)
    net = sharded(start)
    step_with = OPTIMIZERS["sgd"](net.parameters())
    refused(ValueError, "before sharding", lambda: gradcent.attach(step_with, net, example=x))
    assert gradcent.attached(step_with) is None
    gradcent.attach(step_with, net, plan=plan)
    train(net, step_with)
    return {"difference": difference(whole(net), reference(start, "sgd", "gradient"))}
