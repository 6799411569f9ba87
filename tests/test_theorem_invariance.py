"""Theorem 4.1 on a convolutional network over 10,000 steps: the response to a shift of the input.

With centralized SGD and no decay, 1ᵀw of every weight vector stays what it was, so the response to a constant shift
of the inputs does not change either, however long it trains. Without GC it does.
"""

from __future__ import annotations

import torch
from torch import nn

import gradcent

STEPS, SHIFT = 10_000, 3.0


def train(steps: int, on: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first layer's response to the shift, before and after training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).double()
    images, labels = torch.rand(32, 1, 4, 4, dtype=torch.float64), torch.randint(0, 3, (32,))
    probe = torch.rand(2, 1, 4, 4, dtype=torch.float64)

    def response() -> torch.Tensor:
        with torch.no_grad():
            return model[0](probe + SHIFT) - model[0](probe)

    before = response()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if on:
        gradcent.attach(optimizer, model)
    for step in range(steps):
        chosen = slice(8 * (step % 4), 8 * (step % 4) + 8)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return before, response()


def test_the_response_to_a_shift_is_the_initial_one_after_10000_steps() -> None:
    before, after = train(STEPS, on=True)
    assert torch.allclose(after, before, atol=1e-9)


def test_without_gc_it_changes() -> None:
    before, after = train(500, on=False)
    assert (after - before).abs().max() > 0.1
