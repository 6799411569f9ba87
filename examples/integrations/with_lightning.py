"""Lightning with GC: a callback that attaches when fitting starts, so that clipping comes first."""

from __future__ import annotations

import lightning
import torch
from torch import nn

import gradcent
from gradcent.integrations.lightning import CentralizeCallback


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 4))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    module = Classifier()
    before = module.net[0].weight.detach().mean(1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        gradient_clip_val=1.0,
        callbacks=[CentralizeCallback(at="update")],  # the one argument
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8))
    drift = (module.net[0].weight.detach().mean(1) - before).abs().max().item()
    print(gradcent.explain(module).summary())
    print(f"largest drift of a weight vector's mean: {drift:.1e}")


if __name__ == "__main__":
    main()
