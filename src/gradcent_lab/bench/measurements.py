"""The measurements of `gradcent bench`, each returning plain data for the JSON file."""

from __future__ import annotations

import os
from typing import Any

import torch

from gradcent import Layout
from gradcent.kernels import native
from gradcent_lab.bench import implementations as field
from gradcent_lab.bench.parameter_lists import LISTS, Listed, small_tensors
from gradcent_lab.bench.timing import interleaved, noise, ratio, summary, temporaries

FUSED, NAIVE = "torch fused", "naive GC + torch fused"


def steps(name: str, optimizer: str, rounds: int) -> dict[str, Any]:
    """All contenders on one list with one optimizer."""
    tensors = field.Tensors(LISTS[name]())
    found = field.contenders(tensors, optimizer)
    # An in-place add in the same rounds says what the memory can do just now.
    a, b = torch.zeros(1 << 25), torch.ones(1 << 25)
    slow = [each for each in found if not each.endswith("torch fused") and each != field.OURS]
    timed = interleaved({**found, "a.add_(b)": lambda: a.add_(b)}, rounds, seldom=slow)
    moved = field.OPTIMIZERS[optimizer][2] * tensors.numel
    reached = bandwidth(timed[field.OURS], moved)
    limit = bandwidth(timed["a.add_(b)"], 12 * a.numel())
    return {
        "list": name,
        "optimizer": optimizer,
        "parameters": tensors.numel,
        "tensors": len(tensors.parameters),
        "times": summary(timed),
        "ours_over_fused": ratio(timed, field.OURS, FUSED),
        "naive_over_ours": ratio(timed, NAIVE, field.OURS),
        "gigabytes_per_second": reached,
        "add_gigabytes_per_second": limit,
        "share_of_add": reached / limit,
        "temporary_bytes": {each: temporaries(found[each]) for each in (field.OURS, FUSED, NAIVE)},
    }


def bandwidth(times: list[float], moved: int) -> float:
    """Bandwidth of the median time, in GB/s."""
    middle = sorted(times)[len(times) // 2]
    return moved / middle / 1e6


def centralize_pass(name: str, rounds: int) -> dict[str, Any]:
    """What attach adds for an optimizer without a fused step, beside one read and write of the gradients."""
    tensors = field.Tensors(LISTS[name]())
    own = [(g, layout) for g, layout in zip(field.gradients(tensors), tensors.layouts, strict=True) if layout]
    grads, layouts = [g for g, _ in own], [layout for _, layout in own]
    flat = torch.zeros(sum(g.numel() for g in grads))
    timed = interleaved(
        {
            "centralize": lambda: native.centralize_(grads, layouts),
            "read and write": lambda: flat.mul_(1.0001),
            "naive loop": lambda: [g.add_(-g.mean(tuple(range(1, g.dim())), keepdim=True)) for g in grads],
        },
        rounds,
        10,
    )
    return {
        "list": name,
        "times": summary(timed),
        "over_read_and_write": ratio(timed, "centralize", "read and write"),
    }


def largest() -> int:
    """A billion parameters with gradient and momentum take 13 GB; a quarter of that where memory is short."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system
        memory = 0
    return 1 << 30 if memory > 20e9 else 1 << 28


def growth(rounds: int, largest: int) -> dict[str, list[dict[str, Any]]]:
    """How the cost grows with parameters (in 4096-wide matrices) and with tensors (of 32×32)."""
    found: dict[str, list[dict[str, Any]]] = {"parameters": [], "tensors": []}
    size = 1 << 20
    while size <= largest:
        wide = (4096, 4096) if size >= 1 << 24 else (size // 4096, 4096)
        listed: Listed = [(wide, Layout.rows(wide))] * max(1, size >> 24)
        found["parameters"].append(_grown(listed, "AdamW" if size < 1 << 29 else "SGDM", rounds))
        size *= 4
    for count in (10, 100, 1000, 10_000):
        found["tensors"].append(_grown(small_tensors(count), "AdamW", rounds))
    return found


def _grown(listed: Listed, optimizer: str, rounds: int) -> dict[str, Any]:
    tensors = field.Tensors(listed)
    timed = interleaved(field.contenders(tensors, optimizer, everything=False), rounds, 6)
    return {
        "parameters": tensors.numel,
        "tensors": len(listed),
        "optimizer": optimizer,
        "times": {name: each["median_ms"] for name, each in summary(timed).items()},
        "ours_over_fused": ratio(timed, field.OURS, FUSED),
    }


def training_step(rounds: int, batch: int = 16) -> dict[str, Any]:
    """A whole ResNet-18 training step, forward and backward included, with and without GC."""
    from torch import nn

    import gradcent
    from gradcent_lab.models.residual import Basic, ResidualNet

    torch.manual_seed(0)
    model = ResidualNet(Basic, (2, 2, 2, 2), 100)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(100, (batch,))
    options: dict[str, Any] = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}
    with_gc = gradcent.optim.SGD(model.parameters(), model=model, **options)
    without = torch.optim.SGD(model.parameters(), fused=True, **options)
    without.state = with_gc.state

    def step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    timed = interleaved({"with": lambda: step(with_gc), "without": lambda: step(without)}, rounds, 60)
    return {
        "batch": batch,
        "times": summary(timed),
        "with_over_without": ratio(timed, "with", "without"),
        "interval": noise(timed, "with", "without"),
    }


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    model = ""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            model = next(
                (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
            )
    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "kernels": native.reason(),
        "load_average": [round(each, 2) for each in load],
    }
