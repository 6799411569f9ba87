"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from their official binary version, which needs no unpickling.

A record is one or two label bytes and 3,072 bytes of pixels, channel by channel.
"""

from __future__ import annotations

from pathlib import Path

import torch

from gradcent_lab.data.datasets import SETS, place
from gradcent_lab.errors import UserError

PIXELS = 3 * 32 * 32
MEAN = {"cifar100": (0.507, 0.487, 0.441), "cifar10": (0.4914, 0.4822, 0.4465)}
STD = {"cifar100": (0.267, 0.256, 0.276), "cifar10": (0.247, 0.2435, 0.2616)}
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "cifar100": {"train": ("train.bin",), "test": ("test.bin",)},
    "cifar10": {
        "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("test_batch.bin",),
    },
}


def record_size(name: str) -> int:
    """Return the bytes of a record: CIFAR-100 has a coarse and a fine label, CIFAR-10 one."""
    return PIXELS + (2 if name == "cifar100" else 1)


def load(name: str, root: Path | None, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 32, 32, 3) as uint8 and labels, after checking the size of every file."""
    folder = place(name, root)
    record = record_size(name)
    labels_per_record = record - PIXELS
    parts = []
    for file in FILES[name][split]:
        path = folder / file
        if not path.is_file():
            raise UserError(f"{path} is missing: {SETS[name].where}")
        raw = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        if raw.numel() % record:
            raise UserError(
                f"{path} is truncated ({raw.numel()} bytes, {record} per record): unpack it again"
            )
        parts.append(raw.view(-1, record))
    records = torch.cat(parts)
    expected = SETS[name].images[split]
    if len(records) != expected:
        raise UserError(f"{folder} has {len(records)} {split} images, not {expected}: unpack it again")
    labels = records[:, labels_per_record - 1].long()
    if int(labels.max()) >= SETS[name].classes:
        raise UserError(f"{folder} has labels above {SETS[name].classes - 1}: it is not {name}")
    images = records[:, labels_per_record:].view(-1, 3, 32, 32).permute(0, 2, 3, 1).contiguous()
    return images, labels
