"""Campaign 8: a million optimizer steps per dtype: weight sums against their closed forms, and flat memory.

Without decay, and with coupled decay, the sum of every weight vector stays where it began (Theorem 4.1). With
decoupled decay it shrinks by 1 - lr·λ in every step. The drift is compared with a random walk of rounding
errors: a bound of 8·√steps·eps·(largest weight)·length. Memory is the resident size after one tenth of the
steps and at the end. Then 500 whole runs, after which no more descriptors and threads may be open than before.
"""

from __future__ import annotations

import math
import os
import random
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradcent

from .common import TOY, Campaign, Figures, Session

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LR, DECAY = 1e-3, 1e-2
STEPS = 1_000_000
RUNS = 500


@dataclass(frozen=True)
class Case:
    """An optimizer; `share` of the steps; `shrinks` where decoupled decay changes the weight sums."""

    name: str
    kind: Any
    options: dict[str, Any]
    attach: dict[str, Any] = field(default_factory=dict)
    shrinks: bool = False
    share: float = 1.0


CASES = (
    Case("SGD, coupled decay", torch.optim.SGD, {"momentum": 0.9, "weight_decay": DECAY}),
    Case(
        "SGDW, decoupled decay",
        gradcent.optim.SGDW,
        {"momentum": 0.9, "weight_decay": DECAY},
        shrinks=True,
        share=0.1,
    ),
    Case(
        "AdamW at the update", torch.optim.AdamW, {"weight_decay": DECAY}, attach={"at": "update"}, share=0.1
    ),
)
# a decay of 1e-5 per step is lost in half precision, with and without GC
COMBINATIONS = [
    (case, dtype) for case in CASES for dtype in DTYPES if not (case.shrinks and dtype.itemsize == 2)
]
TARGET = sum(round(STEPS * case.share) for case, _ in COMBINATIONS)


def run(session: Session) -> None:
    """Take the steps of every combination that no earlier session has taken, then the runs."""
    torch.set_num_threads(1)
    figures = session.figures
    for case, dtype in COMBINATIONS:
        name = f"{case.name}, {dtype}"
        if name not in figures.details and not session.time_is_over:
            steps = round(STEPS * case.share * session.n / TARGET)
            _walk(name, case, dtype, steps, session)
            session.goes_on()
    name = f"{RUNS} runs"
    if name not in figures.details and not session.time_is_over:
        runs = max(2, round(RUNS * session.n / TARGET))
        _leaks(name, runs, session.folder, figures)


def _walk(name: str, case: Case, dtype: torch.dtype, n: int, session: Session) -> None:
    figures = session.figures
    torch.manual_seed(session.seed)
    rng = random.Random(session.seed)
    model = nn.Linear(16, 8, bias=False).to(dtype)
    weight = model.weight
    if case.kind is gradcent.optim.SGDW:
        optimizer = case.kind(model.parameters(), lr=LR, model=model, **case.options)
    else:
        optimizer = gradcent.attach(
            case.kind(model.parameters(), lr=LR, **case.options), model, **case.attach
        )
    start = weight.detach().double().sum(1)
    gradients = [torch.randn(8, 16).to(dtype) for _ in range(64)]
    weight.grad = gradients[0].clone()
    largest, early = 0.0, 0
    for step in range(n):
        weight.grad.copy_(gradients[rng.randrange(64)])
        optimizer.step()
        if step % 1000 == 0:
            largest = max(largest, float(weight.detach().double().abs().max()))
            if session.time_is_over:
                return  # a walk that is not complete does not count
        if step == n // 10:
            early = _resident()
    expected = start * (1 - LR * DECAY) ** n if case.shrinks else start
    drift = float((weight.detach().double().sum(1) - expected).abs().max())
    largest = max(largest, float(weight.detach().double().abs().max()))
    bound = 8 * math.sqrt(n) * torch.finfo(dtype).eps * largest * 16
    growth = _resident() - early
    figures.tried += n
    figures.details[name] = f"{n:,} steps, drift {drift:.2g} (bound {bound:.2g}), memory {growth:+,} KiB"
    if not drift <= bound:
        figures.fail("wrong", f"{name}: drift {drift:.3g} beyond {bound:.3g} after {n:,} steps")
    if growth > 4096:
        figures.fail("wrong", f"{name}: memory grew by {growth:,} KiB")


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def _leaks(name: str, runs: int, folder: Path, figures: Figures) -> None:
    """Whole runs leave no descriptor and no thread open, and the memory stays flat."""
    from gradcent_lab.experiment.run_config import ON
    from gradcent_lab.run.accelerator import Options
    from gradcent_lab.run.scheduler import run_pairs

    if str(TOY) not in sys.path:
        sys.path.insert(0, str(TOY))
    import campaign_study

    experiment, options = campaign_study.experiment(), Options(checkpoint_seconds=0.0)
    run_pairs(experiment, [ON], range(5), folder / "first", options=options)
    before, threads, memory = len(os.listdir("/proc/self/fd")), threading.active_count(), _resident()
    run_pairs(experiment, [ON], range(runs), folder / "runs", options=options)
    after, growth = len(os.listdir("/proc/self/fd")), _resident() - memory
    figures.details[name] = (
        f"{runs} runs, descriptors {before} before and {after} after, threads {threads} and "
        f"{threading.active_count()}, memory {growth:+,} KiB"
    )
    if after > before or threading.active_count() > threads:
        figures.fail("wrong", f"{after - before} descriptors leaked by {runs} runs")
    if growth > 65_536:
        figures.fail("wrong", f"memory grew by {growth:,} KiB in {runs} runs")


CAMPAIGN = Campaign(
    "endurance",
    "optimizer steps per dtype: weight sums against closed forms, flat memory; 500 runs, no open descriptors",
    run,
    target=TARGET,
    short=1500,
)
