"""The measurements of `gradcent bench`, each returning plain data for the JSON file."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch

from gradcent import Layout
from gradcent.kernels import native
from gradcent_lab.bench import implementations
from gradcent_lab.bench.parameter_lists import LISTS, Listed, small_tensors
from gradcent_lab.bench.timing import interleaved, noise, ratio, summary, temporaries

FUSED, NAIVE = "torch fused", "naive GC + torch fused"


def steps(name: str, optimizer: str, rounds: int) -> dict[str, Any]:
    """Measure all implementations on one list with one optimizer."""
    tensors = implementations.Tensors(LISTS[name]())
    contenders = implementations.contenders(tensors, optimizer)
    # An in-place add in the same rounds measures the bandwidth that the memory has at this time.
    a, b = torch.zeros(1 << 25), torch.ones(1 << 25)
    slow = [key for key in contenders if not key.endswith("torch fused") and key != implementations.OURS]
    timed = interleaved({**contenders, "a.add_(b)": lambda: a.add_(b)}, rounds, seldom=slow)
    moved = implementations.OPTIMIZERS[optimizer][2] * tensors.numel
    reached = bandwidth(timed[implementations.OURS], moved)
    limit = bandwidth(timed["a.add_(b)"], 12 * a.numel())
    return {
        "list": name,
        "optimizer": optimizer,
        "parameters": tensors.numel,
        "tensors": len(tensors.parameters),
        "times": summary(timed),
        "ours_over_fused": ratio(timed, implementations.OURS, FUSED),
        "naive_over_ours": ratio(timed, NAIVE, implementations.OURS),
        "gigabytes_per_second": reached,
        "add_gigabytes_per_second": limit,
        "share_of_add": reached / limit,
        "temporary_bytes": {
            key: temporaries(contenders[key]) for key in (implementations.OURS, FUSED, NAIVE)
        },
    }


def bandwidth(times: list[float], moved: int) -> float:
    """Return the bandwidth of the median time, in GB/s."""
    middle = sorted(times)[len(times) // 2]
    return moved / middle / 1e6


def centralize_pass(name: str, rounds: int) -> dict[str, Any]:
    """Measure what `attach` adds to an optimizer without a fused step, relative to one read and write."""
    tensors = implementations.Tensors(LISTS[name]())
    pairs = [
        (g, layout)
        for g, layout in zip(implementations.gradients(tensors), tensors.layouts, strict=True)
        if layout
    ]
    grads, layouts = [g for g, _ in pairs], [layout for _, layout in pairs]
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
    """Return the size of the largest model: 2^30 parameters with gradient and momentum take 13 GB."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system
        memory = 0
    return 1 << 30 if memory > 20e9 else 1 << 28


def growth(rounds: int, largest: int) -> dict[str, list[dict[str, Any]]]:
    """Measure how the cost grows with parameters (in 4096-wide matrices) and with tensors (of 32×32)."""
    results: dict[str, list[dict[str, Any]]] = {"parameters": [], "tensors": []}
    size = 1 << 20
    while size <= largest:
        wide = (4096, 4096) if size >= 1 << 24 else (size // 4096, 4096)
        listed: Listed = [(wide, Layout.rows(wide))] * max(1, size >> 24)
        results["parameters"].append(_grown(listed, "AdamW" if size < 1 << 29 else "SGDM", rounds))
        size *= 4
    for count in (10, 100, 1000, 10_000):
        results["tensors"].append(_grown(small_tensors(count), "AdamW", rounds))
    return results


def _grown(listed: Listed, optimizer: str, rounds: int) -> dict[str, Any]:
    tensors = implementations.Tensors(listed)
    timed = interleaved(implementations.contenders(tensors, optimizer, everything=False), rounds, 6)
    return {
        "parameters": tensors.numel,
        "tensors": len(listed),
        "optimizer": optimizer,
        "times": {name: entry["median_ms"] for name, entry in summary(timed).items()},
        "ours_over_fused": ratio(timed, implementations.OURS, FUSED),
    }


def training_step(rounds: int, batch: int = 16) -> dict[str, Any]:
    """Measure a whole ResNet-18 training step, forward and backward included, with and without GC."""
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
    """Return what the numbers depend on: processor, threads, versions, load, date."""
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
        "date": datetime.date.today().isoformat(),
        "load_average": [round(value, 2) for value in load],
    }
