"""FSDP2 with GC: shard, make the optimizer, attach. torchrun --standalone --nproc-per-node=2 fsdp2.py"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import gradcent


def train() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 4))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    gradcent.attach(optimizer, model, at="update")  # the one line

    before = model[0].weight.full_tensor().detach().mean(1)
    torch.manual_seed(dist.get_rank())
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).pow(2).mean().backward()
        optimizer.step()
    drift = (model[0].weight.full_tensor().detach().mean(1) - before).abs().max().item()
    if dist.get_rank() == 0:
        print(gradcent.attached(optimizer))
        print(f"largest drift of a weight vector's mean: {drift:.1e}")


def main() -> None:
    dist.init_process_group("gloo")
    train()
    gc.collect()  # what is left of the training still holds the group, and with it the group's threads
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
