"""torchtitan with GC: its container has one optimizer per model part and kind; attach to each, once it is built.

In torchtitan's Trainer the place is after `self.optimizers = config.optimizer.build(...)`. A step hook on the container
(as its MoE load balancing uses) runs before all of them and would not see each optimizer's weight decay.
"""

from __future__ import annotations

import logging

import torch
from torch import nn
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

import gradcent.integrations


class Part(nn.Module):
    """A stage of a pipelined model."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj, self.norm = nn.Linear(inputs, outputs), nn.LayerNorm(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.tanh(self.proj(x)))


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("gradcent").setLevel(logging.INFO)
    torch.manual_seed(0)
    parts = [Part(16, 32), Part(32, 4)]
    groups = [
        ParamGroupConfig(
            pattern="norm", optimizer_name="Adam", optimizer_kwargs={"lr": 1e-2, "weight_decay": 0.0}
        ),
        ParamGroupConfig(
            pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-2, "weight_decay": 0.1}
        ),
    ]
    config = OptimizersContainer.Config(param_groups=groups, implementation="foreach")
    optimizers = config.build(model_parts=parts)
    gradcent.integrations.attach_each(optimizers, parts, at="update")  # the one line
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=20)

    before = parts[0].proj.weight.detach().mean(1)
    for _ in range(20):
        optimizers.zero_grad()
        x = torch.randn(8, 16)
        for part in parts:
            x = part(x)
        (x[:, 0] - 1).pow(2).mean().backward()
        optimizers.step()
        schedulers.step()
    saved = optimizers.state_dict()
    optimizers.load_state_dict(saved)
    drift = (parts[0].proj.weight.detach().mean(1) - before).abs().max().item()
    print(gradcent.explain(parts).summary())
    print(f"largest drift of a weight vector's mean: {drift:.1e}")


if __name__ == "__main__":
    main()
