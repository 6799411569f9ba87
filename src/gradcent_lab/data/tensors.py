"""Images in memory: batches are gathered, cropped, flipped and normalized as whole tensors.

The lab passes the random numbers of the augmentation (three per sample: row, column, flip), so it is the same
for every arm, after a restart, and for any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import Dataset


class TensorImages(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """uint8 images (N, H, W, C) with labels.

    padding: pad the image with zeros on every side, then crop a window of its size at random.
    crop: the size of the window if it is smaller than the image; the centre crop for evaluation.
    random_crop: whether training crops a random window, or the centre as evaluation does.
    flip: mirror left to right with probability one half.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        padding: int = 0,
        crop: int | None = None,
        flip: bool = False,
        random_crop: bool = True,
        train: bool = False,
    ) -> None:
        self.labels = labels.long()
        self.size = crop or images.shape[1]
        self.train, self.random_crop = train, random_crop
        self.flip = flip and train
        self.padding = padding if train else 0
        if self.padding:
            edge = self.padding
            images = torch.nn.functional.pad(images, (0, 0, edge, edge, edge, edge))
        self.images = images
        self.slack = images.shape[1] - self.size
        self.mean = torch.tensor(mean, dtype=torch.float32) * 255
        self.scale = 1 / (torch.tensor(std, dtype=torch.float32) * 255)
        self.draws_per_sample = 3 if train and (self.slack or self.flip) else 0

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: torch.Tensor, draws: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a batch of float images (B, C, size, size), channels last in memory, and its labels."""
        if draws is None:
            edge = self.slack // 2
            window = slice(edge, edge + self.size)
            pixels = self.images[indices][:, window, window]
        else:
            span = torch.arange(self.size)
            start = (draws[:, :2] * (self.slack + 1)).long().clamp_(max=self.slack)
            if not self.random_crop:
                start = torch.full_like(start, self.slack // 2)
            rows = start[:, 0, None] + span
            columns = start[:, 1, None] + span
            if self.flip:
                columns = torch.where(draws[:, 2, None] < 0.5, columns.flip(1), columns)
            pixels = self.images[indices[:, None, None], rows[:, :, None], columns[:, None, :]]
        floats = (pixels.float() - self.mean) * self.scale
        return floats.permute(0, 3, 1, 2), self.labels[indices]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        draws = torch.rand(1, 3) if self.draws_per_sample else None
        images, labels = self.take(torch.tensor([index]), draws)
        return images[0], labels[0]


def balanced(labels: torch.Tensor, count: int | None) -> torch.Tensor:
    """Return the indices of a fixed subset with equally many samples of every class, the first ones of each.

    The first classes get the remainder, so that the subset has exactly `count` samples if there are enough.
    """
    if count is None or count >= len(labels):
        return torch.arange(len(labels))
    classes = torch.unique(labels).tolist()
    share, rest = divmod(count, len(classes))
    chosen = [
        torch.nonzero(labels == label)[: share + (1 if number < rest else 0), 0]
        for number, label in enumerate(classes)
    ]
    return torch.cat(chosen).sort().values
