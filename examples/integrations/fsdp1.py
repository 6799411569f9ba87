"""FSDP1 with GC: its optimizer sees flat pieces, so hook the gradients before wrapping.

torchrun --standalone --nproc-per-node=2 fsdp1.py
"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

import gradcent


def train() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 4))
    before = model[0].weight.detach().mean(1).clone()
    handles = gradcent.attach_to_gradients(model)  # the one line, before wrapping
    wrapped = FullyShardedDataParallel(model, use_orig_params=False, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)

    torch.manual_seed(dist.get_rank())
    for _ in range(20):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 16)).pow(2).mean().backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(wrapped):
        drift = (model[0].weight.detach().mean(1) - before).abs().max().item()
    if dist.get_rank() == 0:
        print(handles.plan.summary())
        print(f"largest drift of a weight vector's mean: {drift:.1e}")


def main() -> None:
    dist.init_process_group("gloo")
    train()
    gc.collect()  # what is left of the training still holds the group, and with it the group's threads
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
