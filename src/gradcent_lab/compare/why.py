"""Why, in numbers: how much of the gradient GC removes in this model, by kind of layer, and how weight sums move.

Measured in two short trainings from one seed, without and with GC. No conclusion is drawn beyond the numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gradcent_lab.data import random_streams
from gradcent_lab.data.batches import Feed
from gradcent_lab.experiment.spec import Experiment

STEPS = 30


@dataclass(frozen=True)
class Measured:
    """Gradient energy and its removable part by kind of layer, and the largest drift of a weight vector's sum."""

    steps: int
    energy: Mapping[str, float]
    removed: Mapping[str, float]
    drift: float


def why_sentences(experiment: Experiment, attach: Mapping[str, Any]) -> list[str]:
    """Return the share of gradient energy that GC removes and the drift of weight sums; empty if unmeasurable."""
    import gradcent

    without, with_ = measure(experiment, None, attach), measure(experiment, attach, attach)
    total = sum(without.energy.values())
    if not without.steps or not total > 0:
        return []
    with random_streams.seeded(0, "why"):
        entries = gradcent.Plan.of(experiment.model(), layers=attach.get("layers", "all")).entries
    chosen = [entry for entry in entries if entry.centralized]
    share = sum(entry.numel for entry in chosen) / max(1, sum(entry.numel for entry in entries))
    parts = ", ".join(
        f"{100 * without.removed[kind] / without.energy[kind]:.0f} % in {kind}"
        for kind in sorted(without.energy)
        if without.energy[kind] > 0
    )
    removed = 100 * sum(without.removed.values()) / total
    return [
        f"In the first {without.steps} steps without GC, centralizing would remove {removed:.0f} % of the gradient's "
        f"energy in the {_tensors(len(chosen))} that GC acts on ({100 * share:.0f} % of all weights): {parts}.",
        f"The sum of a weight vector drifts by up to {without.drift:.2g} in these steps without GC and by up to "
        f"{with_.drift:.2g} with GC.",
    ]


def measure(experiment: Experiment, arm: Mapping[str, Any] | None, attach: Mapping[str, Any]) -> Measured:
    """Train `STEPS` steps with the arm and read the gradients before each step."""
    from accelerate.utils import send_to_device

    import gradcent

    energy: dict[str, float] = defaultdict(float)
    removed: dict[str, float] = defaultdict(float)
    steps = 0
    with random_streams.seeded(0, "why"):
        random_streams.seed_everything(0, "weights")
        model = experiment.model().train()
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        model = model.to(device or "cpu")
        kinds = layer_kinds(model)
        params = experiment.parameters(model) if experiment.parameters else model.parameters()
        optimizer = experiment.optimizer(params)
        monitor = gradcent.Monitor(model, every=1, layers=attach.get("layers", "all"))
        if arm is not None:
            gradcent.attach(optimizer, model, **arm)
        feed = Feed(
            experiment.train_data, experiment.batch_size, seed=0, train=True, drop_last=experiment.drop_last
        )
        for batch in feed.epoch(0):
            inputs, targets = (
                send_to_device(part, device or "cpu") for part in (batch.inputs, batch.targets)
            )
            forward = experiment.forward
            output = model(inputs) if forward is None else forward(model, inputs, targets)
            loss = experiment.loss(output, targets)
            if not torch.isfinite(loss):
                break
            loss.backward()
            for reading in monitor.update():
                energy[kinds.get(reading.name, "other layers")] += reading.energy
                removed[kinds.get(reading.name, "other layers")] += reading.removed * reading.energy
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == STEPS:
                break
        drift = max(monitor.drift().values(), default=0.0)
    return Measured(steps, energy, removed, drift)


def layer_kinds(model: torch.nn.Module) -> dict[str, str]:
    """Map each parameter's name to the kind of its layer."""
    kinds = {}
    for prefix, module in model.named_modules():
        name = type(module).__name__
        kind = "convolutions" if "Conv" in name else "linear layers" if "Linear" in name else f"{name} layers"
        for parameter, _ in module.named_parameters(recurse=False):
            kinds[f"{prefix}.{parameter}" if prefix else parameter] = kind
    return kinds


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"
