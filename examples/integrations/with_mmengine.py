"""MMEngine with GC: a constructor named in the config, as MMDetection's and MMSegmentation's configs would have it."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn

import gradcent

CONFIG = """
custom_imports = dict(imports=["gradcent.integrations.mmengine"])  # these two lines
optim_wrapper = dict(
    type="OptimWrapper",
    constructor="CentralizedConstructor",  # are all
    optimizer=dict(type="AdamW", lr=0.01, weight_decay=1e-4),
    clip_grad=dict(max_norm=35),
    paramwise_cfg=dict(bias_decay_mult=0.0, centralize=dict(at="update")),
)
train_cfg = dict(by_epoch=True, max_epochs=3)
"""


class Net(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor, mode: str = "tensor") -> Any:
        return {"loss": nn.functional.cross_entropy(self.net(x), y)}


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    before = model.net[0].weight.detach().mean(1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    config = Config.fromstring(CONFIG, ".py")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(
            model,
            folder,
            train_dataloader=torch.utils.data.DataLoader(data, batch_size=8),
            optim_wrapper=config.optim_wrapper,
            train_cfg=config.train_cfg,
            log_level="ERROR",
        )
        runner.train()
    drift = (model.net[0].weight.detach().mean(1) - before).abs().max().item()
    print(gradcent.explain(model).summary())
    print(f"largest drift of a weight vector's mean: {drift:.1e}")


if __name__ == "__main__":
    main()
