"""Accelerate with GC: attach before `prepare`. accelerate launch with_accelerate.py"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

import gradcent


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    gradcent.attach(optimizer, model, at="update")  # the one line
    before = model[0].weight.detach().mean(1).to(accelerator.device)
    data = torch.utils.data.DataLoader(torch.randn(64, 16), batch_size=8)
    wrapped, stepper, loader = accelerator.prepare(model, optimizer, data)

    for _ in range(5):
        for x in loader:
            with accelerator.accumulate(wrapped):
                accelerator.backward(wrapped(x).pow(2).mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
                stepper.step()
                stepper.zero_grad()
    inner = accelerator.unwrap_model(wrapped)
    drift = (inner[0].weight.detach().mean(1) - before).abs().max().item()
    accelerator.print(gradcent.attached(optimizer))
    accelerator.print(f"largest drift of a weight vector's mean: {drift:.1e}")


if __name__ == "__main__":
    main()
