"""As in torchtitan: a container of optimizers, one per part of a pipelined model; attach to each with its part."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

import gradcent


class Optimizers:
    """One optimizer per model part, stepped together."""

    def __init__(self, parts: list[nn.Module]) -> None:
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in parts]

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return iter(self.optimizers)

    def step(self) -> None:
        for each in self:
            each.step()

    def zero_grad(self) -> None:
        for each in self:
            each.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(16, 32), nn.Tanh()), nn.Sequential(nn.Linear(32, 4))]
    optimizers = Optimizers(parts)
    for optimizer, part in zip(optimizers, parts, strict=True):
        gradcent.attach(optimizer, part, at="update")  # the one line

    before = parts[0][0].weight.detach().mean(1)
    for _ in range(20):
        optimizers.zero_grad()
        x = torch.randn(8, 16)
        for part in parts:
            x = part(x)
        x.pow(2).mean().backward()
        optimizers.step()
    drift = (parts[0][0].weight.detach().mean(1) - before).abs().max().item()
    print(*(gradcent.attached(each) for each in optimizers), sep="\n")
    print(f"largest drift of a weight vector's mean: {drift:.1e}")


if __name__ == "__main__":
    main()
