"""Campaign 8: many optimizer steps per dtype: weight sums against their closed forms, and flat memory.

Without decay, and with coupled decay, the sum of every weight vector stays where it began (Theorem 4.1). With
decoupled decay it shrinks by 1 - lr·λ in every step. The drift is compared with a random walk of rounding
errors: a bound of 8·√steps·eps·(largest weight)·length. Memory is the resident size after one tenth of the
steps and at the end.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradcent

from .common import Campaign, Figures, time_is_over

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LR, DECAY = 1e-3, 1e-2
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], bool]] = {
    "SGD, coupled decay": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": DECAY}, {}, False),
    "SGDW, decoupled decay": (gradcent.optim.SGDW, {"momentum": 0.9, "weight_decay": DECAY}, {}, True),
    "AdamW at the update": (torch.optim.AdamW, {"weight_decay": DECAY}, {"at": "update"}, False),
}


def run(n: int, seed: int, folder: Path) -> Figures:
    """Take `n` steps in each dtype for each case."""
    torch.set_num_threads(1)
    figures = Figures()
    for dtype in DTYPES:
        for name, case in CASES.items():
            if dtype in (torch.bfloat16, torch.float16) and case[3]:
                continue  # a decay of 1e-5 per step is lost in half precision, with and without GC
            _walk(f"{name}, {dtype}", dtype, case, n, seed, figures)
    _descriptors(figures)
    return figures


def _walk(name: str, dtype: torch.dtype, case: tuple[Any, ...], n: int, seed: int, figures: Figures) -> None:
    kind, options, attach, shrinks = case
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = nn.Linear(16, 8, bias=False).to(dtype)
    if kind is gradcent.optim.SGDW:
        optimizer = kind(model.parameters(), lr=LR, model=model, **options)
    else:
        optimizer = gradcent.attach(kind(model.parameters(), lr=LR, **options), model, **attach)
    start = model.weight.detach().double().sum(1)
    gradients = [torch.randn(8, 16).to(dtype) for _ in range(64)]
    largest, early = 0.0, 0
    steps = 0
    while steps < n and not time_is_over():
        model.weight.grad = gradients[rng.randrange(64)].clone()
        optimizer.step()
        steps += 1
        if steps % 1000 == 0:
            largest = max(largest, float(model.weight.detach().double().abs().max()))
        if steps == max(1, n // 10):
            early = _resident()
    expected = start * (1 - LR * DECAY) ** steps if shrinks else start
    drift = float((model.weight.detach().double().sum(1) - expected).abs().max())
    largest = max(largest, float(model.weight.detach().double().abs().max()))
    bound = 8 * math.sqrt(steps) * torch.finfo(dtype).eps * largest * 16
    growth = _resident() - early
    figures.tried += steps
    figures.details[name] = f"{steps:,} steps, drift {drift:.2g} (bound {bound:.2g}), memory {growth:+,} KiB"
    if not drift <= bound:
        figures.fail("wrong", f"{name}: drift {drift:.3g} beyond {bound:.3g} after {steps:,} steps")
    if growth > 4096:
        figures.fail("wrong", f"{name}: memory grew by {growth:,} KiB")


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def _descriptors(figures: Figures) -> None:
    """Locks and atomic files leave no descriptor open."""
    import tempfile

    from gradcent_lab.store import atomic_files, run_lock

    before = len(os.listdir("/proc/self/fd"))
    with tempfile.TemporaryDirectory() as place:
        for number in range(500):
            atomic_files.write_json(Path(place) / "a.json", {"number": number})
            lock = run_lock.acquire(Path(place))
            assert lock is not None
            lock.release()
            run_lock.clear(Path(place))
    after = len(os.listdir("/proc/self/fd"))
    figures.details["descriptors before and after 500 locks and writes"] = f"{before}, {after}"
    if after > before:
        figures.fail("wrong", f"{after - before} descriptors leaked")


CAMPAIGN = Campaign(
    "endurance",
    "optimizer steps per dtype: weight sums against closed forms, flat memory, no open descriptors",
    run,
    target=10_000_000,  # 10⁶ steps for each of ten combinations of dtype and optimizer
    short=300,
)
