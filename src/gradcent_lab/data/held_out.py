"""A part of the training data held out for tuning, so that the evaluation data never chooses a hyper-parameter."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from gradcent_lab.data.batches import resolve
from gradcent_lab.data.random_streams import generator
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.experiment.study import HELD_OUT


class Part(Dataset[Any]):
    """Some samples of a dataset; in-memory data keeps its fast path."""

    def __init__(self, data: Any, index: torch.Tensor, *, augment: bool) -> None:
        self.data, self.index = data, index
        self.draws_per_sample = getattr(data, "draws_per_sample", 0) if augment else 0
        if hasattr(data, "take"):
            self.take = self._take
        if hasattr(data, "collate"):
            self.collate = data.collate

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> Any:
        return self.data[int(self.index[number])]

    def _take(self, index: torch.Tensor, draws: torch.Tensor | None = None) -> Any:
        return self.data.take(self.index[index], draws)


def hold_out(experiment: Experiment, share: float = HELD_OUT) -> Experiment:
    """Return the experiment trained on most of its training data and evaluated on the rest of it."""
    data = resolve(experiment.train_data)
    if isinstance(data, DataLoader) or not (hasattr(data, "__getitem__") or hasattr(data, "take")):
        raise UserError(
            "--tune holds out a part of the training data, so Experiment.train_data must be a Dataset, "
            f"not {type(data).__name__}"
        )
    order = torch.randperm(len(data), generator=generator("held out"))
    count = max(1, round(share * len(data)))
    if experiment.drop_last and len(data) - count < experiment.batch_size:
        raise UserError(
            f"--tune holds out {count} of {len(data)} training samples, and the rest does not fill a batch of "
            f"{experiment.batch_size}: use more data or a smaller batch"
        )
    settings = None if experiment.settings is None else {**experiment.settings, "held_out": share}
    return dataclasses.replace(
        experiment,
        train_data=Part(data, order[count:], augment=True),
        eval_data=Part(data, order[:count], augment=False),
        eval_drop_last=False,
        settings=settings,
    )
