"""A causal transformer that predicts the next character of Python's manual."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import TensorDataset

from gradcent_lab.data.held_out import hold_out
from gradcent_lab.data.python_manual import manual_digest, unique_paragraphs
from gradcent_lab.errors import UserError
from gradcent_lab.experiment import optimizers
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.forecasting.calibration.datasets import text
from gradcent_lab.forecasting.calibration.networks import Transformer


def build(settings: Mapping[str, Any], data: Path | None) -> Experiment:
    """Return the experiment that `settings` describe; the manual of another Python is another data set."""
    sizes, model = settings["data"], settings["model"]
    if sizes["text"] != manual_digest():
        raise UserError(
            f"the runs were made with another release of Python: its manual has the digest {sizes['text']}, this one's "
            f"has {manual_digest()}; use the release that environment.json names"
        )
    split = text(sizes["length"], train=sizes["train"], source=unique_paragraphs())
    experiment = Experiment(
        name=settings["name"],
        model=lambda: Transformer(
            split.classes,
            pre_norm=model["pre_norm"],
            patches=False,
            tokens=sizes["length"],
            vocabulary=split.classes,
            width=model["width"],
            layers=model["layers"],
        ),
        train_data=TensorDataset(split.train_inputs, split.train_targets),
        eval_data=TensorDataset(split.test_inputs, split.test_targets),
        loss=next_character_loss,
        metric=next_character_accuracy,
        metric_name="accuracy, %",
        optimizer=optimizers.optimizer(settings["optimizer"]),
        schedule=optimizers.warmup_cosine(settings["epochs"], settings["schedule"]["warmup"]),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        settings=settings,
    )
    share = settings.get("held_out")
    return experiment if share is None else hold_out(experiment, share)


def next_character_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy over all characters."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def next_character_accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return, for each window, the share of characters that are predicted, in percent."""
    return 100 * (output.argmax(-1) == target).float().mean(1)
