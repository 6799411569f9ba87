"""Train one task once: one arm, one learning rate, one seed. Equal seeds share initial weights and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import gradcent
from gradcent_lab.forecasting.calibration.datasets import Split
from gradcent_lab.forecasting.calibration.tasks import Task

Arm = Literal["off", "all", "hidden"]
ARMS: tuple[Arm, ...] = ("off", "all", "hidden")
DIVERGED = 20.0  # a mean training loss above this multiple of the first loss counts as divergence


@dataclass(frozen=True)
class Run:
    """One run: losses are means per sample, None where it diverged; `accuracy` is None for regression."""

    task: str
    arm: str
    lr: float
    seed: int
    train_loss: float | None  # mean over all steps: the lower, the faster it trained
    end_loss: float | None  # mean over the last tenth of the steps
    test_loss: float | None
    accuracy: float | None
    diverged: bool

    def as_row(self) -> dict[str, Any]:
        """Return plain data, rounded to what is meaningful."""
        return {name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in asdict(self).items()}


def build_optimizers(task: Task, model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Return the task's optimizer; Muon trains the matrices and AdamW the rest."""
    params = list(model.parameters())
    if task.optimizer == "SGD":
        return [torch.optim.SGD(params, lr=lr, momentum=0.9)]
    if task.optimizer == "AdamW":
        return [torch.optim.AdamW(params, lr=lr, weight_decay=0.01)]
    if task.optimizer == "Lion":
        from lion_pytorch import Lion  # type: ignore[import-untyped]

        return [Lion(params, lr=lr, weight_decay=0.0)]
    matrices = [param for param in params if param.ndim == 2]
    others = [param for param in params if param.ndim != 2]
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.0)
    return [muon, torch.optim.AdamW(others, lr=0.1 * lr, weight_decay=0.0)] if others else [muon]


def loss_of(split: Split) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss: cross-entropy for classes (one or many per sample), else the squared error."""
    if not split.classes:
        return nn.functional.mse_loss
    return lambda output, target: nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def batches(split: Split, size: int, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of shuffled training samples; the order depends on the seed alone."""
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    count = len(split.train_inputs)
    size = min(size, count)
    order = torch.randperm(count, generator=generator)
    start = 0
    for _ in range(steps):
        if start + size > count:
            order, start = torch.randperm(count, generator=generator), 0
        chosen = order[start : start + size]
        start += size
        yield split.train_inputs[chosen], split.train_targets[chosen]


def train(task: Task, split: Split, arm: Arm, lr: float, seed: int) -> Run:
    """Train and evaluate; a run whose loss is not finite or explodes ends early and counts as diverged."""
    torch.manual_seed(seed)
    model = task.build_model()
    optimizers = build_optimizers(task, model, lr)
    if arm != "off":
        example = split.train_inputs[: min(task.batch, 16)]
        for optimizer in optimizers:
            attach(optimizer, model, arm, example)
    loss_function = loss_of(split)
    schedules = [torch.optim.lr_scheduler.LinearLR(each, 1.0, 0.1, task.steps) for each in optimizers]
    losses: list[float] = []
    for inputs, targets in batches(split, task.batch, task.steps, seed):
        loss = loss_function(model(inputs), targets)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]) or losses[-1] > DIVERGED * max(losses[0], 1.0):
            return Run(task.name, arm, lr, seed, None, None, None, None, True)
        model.zero_grad()
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
    test_loss, accuracy = evaluate(model, split)
    tail = losses[-max(1, len(losses) // 10) :]
    return Run(
        task.name, arm, lr, seed, sum(losses) / len(losses), sum(tail) / len(tail), test_loss, accuracy, False
    )


def attach(
    optimizer: torch.optim.Optimizer, model: nn.Module, arm: Literal["all", "hidden"], example: Tensor
) -> None:
    """Turn GC on for the arm; an optimizer that holds no weight vector (Muon's partner) stays as it is."""
    plan = gradcent.explain(model, layers=arm, example=example)
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    if any(entry.layout is not None and id(param) in held for param, entry in plan.named()):
        gradcent.attach(optimizer, plan=plan, decay="decoupled")


@torch.no_grad()
def evaluate(model: nn.Module, split: Split) -> tuple[float, float | None]:
    """Return loss and accuracy (in %) on the test samples."""
    model.eval()
    output = model(split.test_inputs)
    loss = float(loss_of(split)(output, split.test_targets))
    if not split.classes:
        return loss, None
    return loss, 100 * float((output.argmax(-1) == split.test_targets).float().mean())
