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
from gradcent_lab.run.example_plan import plan_experiment, with_plan

STEPS = 30


@dataclass(frozen=True)
class Measured:
    """What the steps showed.

    energy, removed: gradient energy and its removable part by parameter.
    layers: parameter → kind of its layer and its role, the centralized ones only.
    share: the share of all weights that GC acts on.
    drift: the largest drift of a weight vector's sum.
    """

    steps: int
    energy: Mapping[str, float]
    removed: Mapping[str, float]
    layers: Mapping[str, tuple[str, str]]
    share: float
    drift: float


def why_sentences(experiment: Experiment, attach: Mapping[str, Any]) -> list[str]:
    """Return the share of gradient energy that GC removes and the drift of weight sums; empty if unmeasurable."""
    without, with_ = measure(experiment, attach, on=False), measure(experiment, attach, on=True)
    total = sum(without.energy.values())
    if not without.steps or not total > 0:
        return []
    parts = _shares(without, {name: kind for name, (kind, _) in without.layers.items()})
    roles = {name: role for name, (_, role) in without.layers.items() if role}
    by_role = f"; by role: {_shares(without, roles)}" if len(set(roles.values())) > 1 else ""
    removed = 100 * sum(without.removed.values()) / total
    return [
        f"In the first {without.steps} steps without GC, centralizing would remove {removed:.0f} % of the gradient's "
        f"energy in the {_tensors(len(without.layers))} that GC acts on ({100 * without.share:.0f} % of all weights): "
        f"{parts}{by_role}.",
        f"The sum of a weight vector drifts by up to {without.drift:.2g} in these steps without GC and by up to "
        f"{with_.drift:.2g} with GC.",
    ]


def measure(experiment: Experiment, attach: Mapping[str, Any], *, on: bool) -> Measured:
    """Train `STEPS` steps with or without GC and read the gradients before each step."""
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
        params = experiment.parameters(model) if experiment.parameters else model.parameters()
        optimizer = experiment.optimizer(params)
        plan = plan_experiment(model, experiment, attach)
        monitor = gradcent.Monitor(model, every=1, plan=plan)
        if on:
            gradcent.attach(optimizer, model, **with_plan(attach, plan))
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
                energy[reading.name] += reading.energy
                removed[reading.name] += reading.removed * reading.energy
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == STEPS:
                break
        drift = max(monitor.drift().values(), default=0.0)
    kinds = layer_kinds(model)
    entries = [entry for entry in plan.entries if entry.centralized]
    layers = {
        entry.name: (
            kinds.get(entry.name, "other layers"),
            {"input": "the input layer", "hidden": "hidden layers", None: ""}[entry.role],
        )
        for entry in entries
    }
    share = sum(entry.numel for entry in entries) / max(1, sum(entry.numel for entry in plan.entries))
    return Measured(steps, energy, removed, layers, share, drift)


def _shares(measured: Measured, groups: Mapping[str, str]) -> str:
    """The removed share of the energy by group of layers: `33 % in convolutions, 5 % in linear layers`."""
    energy: dict[str, float] = defaultdict(float)
    removed: dict[str, float] = defaultdict(float)
    for name, group in groups.items():
        energy[group] += measured.energy.get(name, 0.0)
        removed[group] += measured.removed.get(name, 0.0)
    return ", ".join(
        f"{100 * removed[group] / energy[group]:.0f} % in {group}"
        for group in sorted(energy)
        if energy[group] > 0
    )


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
