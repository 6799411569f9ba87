"""Sets that are kept in memory: CIFAR, Fashion-MNIST, digits."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gradcent_lab.data import cifar
from gradcent_lab.data.datasets import SETS, place
from gradcent_lab.data.tensors import TensorImages, balanced
from gradcent_lab.errors import UserError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist puts it
STATISTICS = {
    "cifar100": (cifar.MEAN["cifar100"], cifar.STD["cifar100"]),
    "cifar10": (cifar.MEAN["cifar10"], cifar.STD["cifar10"]),
    "fashionmnist": ((0.286,), (0.353,)),
    "digits": ((0.305,), (0.376,)),
}


def open_in_memory(spec: Mapping[str, Any], root: Path | None) -> tuple[TensorImages, TensorImages, int]:
    """Return training data, evaluation data and the number of classes."""
    name = spec["set"]
    mean, std = STATISTICS[name]
    augmented = spec.get("augment", "none") != "none"
    if spec.get("augment", "none") not in ("pad-crop-flip", "none"):
        raise UserError(f"{name} can be augmented by pad-crop-flip or none, not by {spec['augment']}")
    parts = []
    for split, count in (("train", spec.get("train")), ("test", spec.get("eval"))):
        images, labels = _load(name, root, split)
        chosen = balanced(labels, count)
        size = images.shape[1]
        parts.append(
            TensorImages(
                images[chosen],
                labels[chosen],
                mean,
                std,
                padding=size // 8 if augmented else 0,
                crop=size,
                flip=augmented,
                train=split == "train",
            )
        )
    return parts[0], parts[1], SETS[name].classes


@lru_cache(maxsize=4)
def _load(name: str, root: Path | None, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Read a split, once per process because a study has many runs on the same images."""
    if name in ("cifar100", "cifar10"):
        return cifar.load(name, root, split)
    return _digits(split) if name == "digits" else _fashion(root, split)


def _digits(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Split scikit-learn's digits: every fifth image is for testing, 1,437 and 360."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError("the digits need scikit-learn: pip install scikit-learn") from error
    digits = load_digits()
    images = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8)[..., None]
    labels = torch.from_numpy(digits.target)
    test = torch.arange(len(labels)) % 5 == 0
    chosen = test if split == "test" else ~test
    return images[chosen], labels[chosen]


def _fashion(root: Path | None, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    folder = DEBIAN if DEBIAN.is_dir() else place("fashionmnist", root)
    prefix = "train" if split == "train" else "t10k"
    images = _idx(folder, f"{prefix}-images-idx3-ubyte")
    labels = _idx(folder, f"{prefix}-labels-idx1-ubyte")
    if len(images) != len(labels) or len(labels) != SETS["fashionmnist"].images[split]:
        raise UserError(
            f"{folder} has {len(labels)} {split} labels for {len(images)} images: download it again"
        )
    return images[..., None], labels.long()


def _idx(folder: Path, name: str) -> torch.Tensor:
    """Read an IDX file: a magic number, the dims, then bytes."""
    plain, packed = folder / name, folder / f"{name}.gz"
    path = plain if plain.is_file() else packed
    if not path.is_file():
        raise UserError(f"{plain} is missing: {SETS['fashionmnist'].where}")
    try:
        raw = path.read_bytes() if path == plain else gzip.decompress(path.read_bytes())
        zero, kind, dims = struct.unpack(">HBB", raw[:4])
        shape = struct.unpack(f">{dims}I", raw[4 : 4 + 4 * dims])
        if zero != 0 or kind != 8:
            raise ValueError("not an IDX file of bytes")
        return torch.frombuffer(bytearray(raw[4 + 4 * dims :]), dtype=torch.uint8).view(shape).clone()
    except (ValueError, struct.error, RuntimeError, EOFError, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged ({error}): download it again") from error
