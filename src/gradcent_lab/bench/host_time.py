"""The host time of a GPU step: everything up to the launch, with the launch itself replaced by a no-op.

No GPU is needed: reading pointers, comparing tables and preparing arguments is the same work for CPU tensors. torch's
fused step runs on tensors without elements, so that its kernels have nothing to do, and does not increment its step
counters. Nothing else runs between the steps: caches are warm for both. Set TRITON_INTERPRET=1, which lets the Triton
path take CPU tensors.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

import gradcent
from gradcent.kernels import triton, triton_check, triton_launch
from gradcent_lab.bench.implementations import Tensors
from gradcent_lab.bench.parameter_lists import small_tensors
from gradcent_lab.bench.timing import ratio, summary
from gradcent_lab.errors import UserError

OURS, TORCH = "gradcent triton", "torch fused"


@contextlib.contextmanager
def no_launches() -> Iterator[list[str]]:
    """Replace launches and torch's fused kernels by no-ops; yield the names of the kernels that would have run."""
    launched: list[str] = []

    def record(kernel: Any, *_: Any, **__: Any) -> None:
        launched.append(kernel.__name__)

    def nothing(*_: Any, **__: Any) -> None:
        pass

    counters = mock.patch.object(torch, "_foreach_add_", nothing)
    unchecked = mock.patch.object(triton_check, "require", nothing)
    with mock.patch.object(triton_launch, "launch", record), counters, unchecked:
        yield launched


def host_time(count: int, rounds: int = 40) -> dict[str, Any]:
    """Return the host time of AdamW's step on `count` tensors of 32×32, beside torch's."""
    if not triton.available():
        raise UserError(f"the host time of a GPU step needs Triton: {triton.reason()}")
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError("set TRITON_INTERPRET=1 to measure the host time of a GPU step without a GPU")
    tensors = Tensors(small_tensors(count))
    empty = Tensors([((0, 32), None)] * count)
    our_adamw = gradcent.optim.AdamW(tensors.parameters, plan=tensors.plan, kernel="triton")
    torch_adamw = torch.optim.AdamW(empty.parameters, fused=True)
    times: dict[str, list[float]] = {OURS: [], TORCH: []}
    with no_launches() as launched:
        for _ in range(3):  # creates states and tables
            our_adamw.step()
            torch_adamw.step()
        before = len(launched)
        for _ in range(rounds):
            for name, step in ((OURS, our_adamw.step), (TORCH, torch_adamw.step)):
                start = time.perf_counter()
                step()
                times[name].append((time.perf_counter() - start) * 1e3)
    launches = (len(launched) - before) // rounds
    return {
        "tensors": count,
        "launches": launches,
        "times": summary(times),
        "ours_over_torch": ratio(times, OURS, TORCH),
    }
