"""Experiments from the objects of other trainers: a Hugging Face `Trainer`, a `LightningModule`.

The lab trains with its own loop, so that the pairs are pairs: same weights, same batches, checked. It takes model,
data, loss, optimizer, schedule and metrics from the other trainer, and refuses what it would otherwise ignore.
"""

from gradcent_lab.adapters.lightning import from_lightning
from gradcent_lab.adapters.transformers import from_trainer

__all__ = ["from_lightning", "from_trainer"]
