"""`gradcent bench --device cuda`: the step with GC beside torch's own on a GPU, timed by events on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from gradcent.kernels import triton, triton_check
from gradcent_lab.bench.implementations import OPTIMIZERS, OURS, Tensors, contenders
from gradcent_lab.bench.parameter_lists import LISTS, Listed
from gradcent_lab.bench.timing import ratio, summary
from gradcent_lab.errors import UserError

FUSED, NAIVE = "torch fused", "naive GC + torch fused"
FLUSH_BYTES = 256 << 20  # written before each step: several times the L2 cache of an H100


def cuda_device() -> torch.device:
    """Return the device to measure on; refuse a machine without one."""
    if not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here (see `gradcent doctor`)")
    return torch.device("cuda", torch.cuda.current_device())


def milliseconds(step: Callable[[], Any], device: torch.device) -> float:
    """Return the time of one step, on the device where it has events."""
    if device.type != "cuda":
        start = time.perf_counter()
        step()
        return (time.perf_counter() - start) * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def interleaved_on(
    device: torch.device, steps: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, list[float]]:
    """Run all steps in turn; other memory is written before each, so that caches hold nothing of use."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    other = torch.zeros(FLUSH_BYTES // 4, device=device)
    for step in steps.values():  # compiles kernels and creates tables
        step()
    for number in range(rounds):
        names = list(steps)
        for name in names if number % 2 == 0 else reversed(names):
            other.add_(1)
            times[name].append(milliseconds(steps[name], device))
    return times


def measure_steps(listed: Listed, optimizer: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """All implementations on one list with one optimizer: times, ratios, bandwidth."""
    tensors = Tensors(listed, device=device)
    steps = contenders(tensors, optimizer)
    a, b = (torch.ones(FLUSH_BYTES // 4, device=device) for _ in range(2))
    steps["a.add_(b)"] = lambda: a.add_(b)
    times = interleaved_on(device, steps, rounds)
    medians = {name: entry["median_ms"] for name, entry in summary(times).items()}
    moved = OPTIMIZERS[optimizer][2] * tensors.numel
    reached, limit = moved / medians[OURS] / 1e6, 12 * a.numel() / medians["a.add_(b)"] / 1e6
    return {
        "optimizer": optimizer,
        "parameters": tensors.numel,
        "tensors": len(tensors.parameters),
        "times": summary(times),
        "ours_over_fused": ratio(times, OURS, FUSED),
        "naive_over_ours": ratio(times, NAIVE, OURS),
        "gigabytes_per_second": reached,
        "share_of_add": reached / limit,
    }


def line(name: str, result: dict[str, Any]) -> str:
    """Return one result as a line."""
    ours, fused = (result["times"][key]["median_ms"] for key in (OURS, FUSED))
    return (
        f"{name:<12} {result['optimizer']:<8} gradcent {ours:8.3f} ms   torch fused {fused:8.3f} ms   ratio "
        f"{result['ours_over_fused']:5.2f}   {result['gigabytes_per_second']:7.0f} GB/s, "
        f"{result['share_of_add']:.2f} of a.add_(b)"
    )


def run(lists: list[str], optimizers: list[str], rounds: int) -> dict[str, Any]:
    """Check the kernels, measure everything and print a line for each; return the document."""
    device = cuda_device()
    if not triton.available():
        raise UserError(f"--device cuda: {triton.reason()}")
    check = triton_check.check(device, torch.float32)
    if check.problem:
        raise UserError(f"--device cuda: {triton_check.message(check)}")
    print(f"{check.device}, torch {torch.__version__}; the kernels agree with the reference", flush=True)
    document: dict[str, Any] = {"device": check.device, "torch": torch.__version__, "steps": []}
    for name in lists:
        for optimizer in optimizers:
            result = measure_steps(LISTS[name](), optimizer, rounds, device)
            document["steps"].append({"list": name, **result})
            print(line(name, result), flush=True)
    return document
