"""Timing and memory: interleaved rounds and medians, so that a noisy neighbour hits all alike."""

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
    """Run all steps in turn, again and again; return each one's times in milliseconds.

    At least 5 rounds, at most `rounds`, and no more than `seconds` in all. Those named in `seldom` take part in
    every fourth round only: they are slow, and the others need many rounds to be told apart.

    Before each turn other memory is written, as forward and backward do: a step that finds what the one before left
    in the caches of the right (or of the wrong) core would tell of its predecessor.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    other = torch.zeros(OTHER_ELEMENTS)
    for step in steps.values():
        step()
    began = time.perf_counter()
    for number in range(rounds):
        names = [name for name in steps if number % SELDOM == 0 or name not in seldom]
        forward = (number + number // SELDOM) % 2 == 0  # nobody always follows the same one
        for name in names if forward else reversed(names):
            other.add_(1)
            start = time.perf_counter()
            steps[name]()
            times[name].append((time.perf_counter() - start) * 1e3)
        if number >= 4 and time.perf_counter() - began > seconds:
            break
    return times


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median, quickest and quartiles of each."""
    found = {}
    for name, each in times.items():
        low, middle, high = statistics.quantiles(each, n=4)
        found[name] = {
            "median_ms": middle,
            "min_ms": min(each),
            "q1_ms": low,
            "q3_ms": high,
            "rounds": len(each),
        }
    return found


def ratio(times: dict[str, list[float]], over: str, under: str) -> float:
    """Median over the rounds of one contender's time divided by another's in the same round."""
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def noise(times: dict[str, list[float]], over: str, under: str) -> tuple[float, float]:
    """Return the 95 % interval of that median: how far other rounds of the same thing could have moved it."""
    ratios = sorted(a / b for a, b in zip(times[over], times[under], strict=True))
    spread = 0.98 * math.sqrt(len(ratios))  # ranks; of n rounds as many as not lie below the true median
    low = max(0, math.floor((len(ratios) - 1) / 2 - spread))
    return ratios[low], ratios[len(ratios) - 1 - low]


class _Allocations(TorchDispatchMode):
    """Counts the bytes of tensors that torch's operations create."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in _tensors((args, kwargs))}
        for each in _tensors(result):
            if each.untyped_storage().data_ptr() not in known:
                self.bytes += each.untyped_storage().nbytes()
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in torch.utils._pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def temporaries(step: Callable[[], Any]) -> int:
    """Return how many bytes one step allocates: new tensors, and the memory of the native kernels."""
    with _Allocations() as counted:
        native_bytes = native.allocated_bytes(step)
    return int(counted.bytes) + native_bytes
