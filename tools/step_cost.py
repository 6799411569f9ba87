"""Time a small step with and without GC for the optimizers that have no fused step here.

    python tools/step_cost.py [NAME …]

CPU time of one thread, so that other processes disturb little; medians of interleaved rounds. The model has 9 weights
and 18 other tensors, 0.2 million parameters: small enough that the cost per tensor dominates.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import gradcent

CLASSES = ["RMSprop", "NAdam", "RAdam", "Adadelta", "Adamax", "ASGD", "Rprop", "Adafactor", "Muon"]
NAMES = [*CLASSES, "own Lion", "SGD foreach"]
ROUNDS, STEPS = 60, 3


def network() -> nn.Module:
    """Return a small convolutional network; it is never run."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = [3, 16, 32, 32, 64, 64, 64]
    for inputs, outputs in itertools.pairwise(channels):
        layers += [nn.Conv2d(inputs, outputs, 3), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))


class Lion(torch.optim.Optimizer):
    """Lion, written as a loop over the parameters: an optimizer that gradcent does not know, so GC uses step hooks."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step against the sign of the interpolated momentum."""
        for group in self.param_groups:
            for param in group["params"]:
                momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
                update = momentum.mul(0.9).add_(param.grad, alpha=0.1).sign_()
                param.add_(update, alpha=-group["lr"])
                momentum.lerp_(param.grad, 0.01)


def step_of(name: str, at: Any) -> Callable[[], Any]:
    """Return the step of an optimizer with gradients, with GC at ``at`` or without."""
    model = network()
    for param in model.parameters():
        param.grad = torch.randn_like(param) * 0.01
    params = [param for param in model.parameters() if name != "Muon" or param.ndim == 2]
    if name == "own Lion":
        optimizer: torch.optim.Optimizer = Lion(params, lr=1e-3)
    elif name == "SGD foreach":
        optimizer = torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True)
    else:
        optimizer = getattr(torch.optim, name)(params, lr=1e-3)
    if at is not None:
        gradcent.attach(optimizer, model, at=at)
    for _ in range(STEPS):
        optimizer.step()
    return optimizer.step


def main() -> None:
    """Print one line per optimizer."""
    torch.set_num_threads(1)
    print(f"{'optimizer':12s} {'plain µs':>8s} {'gradient':>8s} {'update':>8s}   (times the plain step)")
    for name in sys.argv[1:] or NAMES:
        steps = {at: step_of(name, at) for at in (None, "gradient", "update")}
        times: dict[Any, list[float]] = {at: [] for at in steps}
        for _ in range(ROUNDS):
            for at, step in steps.items():
                start = time.process_time()
                for _ in range(STEPS):
                    step()
                times[at].append((time.process_time() - start) / STEPS)
        plain, gradient, update = (statistics.median(values) for values in times.values())
        print(f"{name:12s} {plain * 1e6:8.0f} {gradient / plain:8.2f} {update / plain:8.2f}", flush=True)


if __name__ == "__main__":
    main()
