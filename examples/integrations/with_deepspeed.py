"""DeepSpeed ZeRO with GC: hook the gradients before `initialize`; its optimizer sees flat pieces only.

torchrun --standalone --nproc-per-node=2 with_deepspeed.py (on a CPU: DS_ACCELERATOR=cpu)
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
from torch import nn

import gradcent


def main() -> None:
    deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 4))
    before = model[0].weight.detach().mean(1).clone()
    handles = gradcent.attach_to_gradients(model)  # the one line, before initialize
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # DeepSpeed's default is 1.0
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    torch.manual_seed(torch.distributed.get_rank())
    for _ in range(20):
        engine.backward(engine(torch.randn(8, 16)).pow(2).mean())
        engine.step()
    drift = (model[0].weight.detach().mean(1) - before).abs().max().item()
    if torch.distributed.get_rank() == 0:
        print(handles.plan.summary())
        print(f"largest drift of a weight vector's mean: {drift:.1e}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
