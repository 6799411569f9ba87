"""Measure times and memory: interleaved rounds and medians, so that other load affects all implementations alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradcent.kernels import native

SELDOM = 4
OTHER_ELEMENTS = 1 << 25  # 128 MB, several times the last-level cache of most machines


def interleaved(
    steps: dict[str, Callable[[], Any]], rounds: int, seconds: float = 15.0, seldom: Collection[str] = ()
) -> dict[str, list[float]]:
    """Run all steps in turn for several rounds; return their times in milliseconds.

    Runs at least 5 and at most `rounds` rounds, and stops after `seconds`. The slow steps named in `seldom` run in
    every fourth round only, so that the others get many rounds.

    Other memory is written before each step, as forward and backward do: otherwise the time of a step would depend
    on what the previous step left in the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    other = torch.zeros(OTHER_ELEMENTS)
    for step in steps.values():
        step()
    began = time.perf_counter()
    for number in range(rounds):
        names = [name for name in steps if number % SELDOM == 0 or name not in seldom]
        forward = (number + number // SELDOM) % 2 == 0  # no step always follows the same other step
        for name in names if forward else reversed(names):
            other.add_(1)
            start = time.perf_counter()
            steps[name]()
            times[name].append((time.perf_counter() - start) * 1e3)
        if number >= 4 and time.perf_counter() - began > seconds:
            break
    return times


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return median, minimum and quartiles of each step's times."""
    result = {}
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        result[name] = {
            "median_ms": middle,
            "min_ms": min(values),
            "q1_ms": low,
            "q3_ms": high,
            "rounds": len(values),
        }
    return result


def ratio(times: dict[str, list[float]], over: str, under: str) -> float:
    """Return the median over rounds of one step's time divided by another's in the same round."""
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def noise(times: dict[str, list[float]], over: str, under: str) -> tuple[float, float]:
    """Return the 95 % interval of the median ratio, from order statistics."""
    ratios = sorted(a / b for a, b in zip(times[over], times[under], strict=True))
    spread = 0.98 * math.sqrt(len(ratios))  # in ranks: the count below the true median is binomial(n, 1/2)
    low = max(0, math.floor((len(ratios) - 1) / 2 - spread))
    return ratios[low], ratios[len(ratios) - 1 - low]


class _Allocations(TorchDispatchMode):
    """Counts the bytes of tensors that torch's operations create."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            if tensor.untyped_storage().data_ptr() not in known:
                self.bytes += tensor.untyped_storage().nbytes()
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def temporaries(step: Callable[[], Any]) -> int:
    """Return how many bytes one step allocates: new tensors, and the memory of the native kernels."""
    with _Allocations() as counted:
        native_bytes = native.allocated_bytes(step)
    return int(counted.bytes) + native_bytes
