"""Image sets in folders, read from disk every time or decoded once into memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from gradcent_lab.data.datasets import SETS, place
from gradcent_lab.data.folder_formats import Samples, samples
from gradcent_lab.data.tensors import TensorImages, balanced
from gradcent_lab.errors import DataError, UserError

NORMALIZE = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


class ImageFiles(Dataset[tuple[Any, int]]):
    """Images that are read when they are indexed."""

    def __init__(self, files: Samples, transform: Any) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.files[index]
        return self.transform(read(path)), label


def open_folder(spec: Mapping[str, Any], root: Path | None) -> tuple[Any, Any, int]:
    """Return training data, evaluation data and the number of classes."""
    name = spec["set"]
    folder = Path(spec["path"]) if name == "folder" else place(name, root)
    paths, classes = samples(name, folder)
    size = int(spec["size"])
    resize = int(spec.get("resize", size))
    mean, std = NORMALIZE[spec.get("normalize", "imagenet")]
    parts: list[Any] = []
    for split, count in (("train", spec.get("train")), ("test", spec.get("eval"))):
        files = _choose(name, folder, split, paths[split], count)
        training = split == "train"
        augment = spec.get("augment", "none") if training else "none"
        if spec.get("memory", False):
            if augment == "resized-crop-flip":
                raise UserError("images in memory cannot be augmented by resized-crop-flip")
            images, labels = _decode(tuple(files), resize, bool(spec.get("square")))
            parts.append(
                TensorImages(
                    images,
                    labels,
                    mean,
                    std,
                    padding=size // 8 if augment == "pad-crop-flip" else 0,
                    crop=size,
                    flip=augment != "none",
                    random_crop=augment != "centre-crop-flip",
                    train=training and augment != "none",
                )
            )
        else:
            parts.append(
                ImageFiles(files, _transform(augment, size, resize, bool(spec.get("square")), mean, std))
            )
    return parts[0], parts[1], classes


def read(path: Path) -> Any:
    """Open an image as RGB; an unreadable file is an error that names it."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing, although the set's list names it: unpack the set again"
        ) from error
    except Exception as error:  # Pillow raises many types for damaged files
        reason = str(error).split("\n")[0]
        raise DataError(f"{path} cannot be read as an image ({reason}): replace or delete it") from error


def _choose(name: str, folder: Path, split: str, files: Samples, count: int | None) -> Samples:
    """Return a fixed, balanced subset, or all images after checking that the set is complete."""
    if not files:
        raise UserError(f"{folder} has no {split} images")
    if count is None:
        expected = SETS[name].images[split] if name in SETS else len(files)
        if len(files) != expected:
            raise UserError(
                f"{folder} has {len(files):,} {split} images, not {expected:,}: complete it, or choose a smaller "
                "--scale"
            )
        return files
    if len(files) < count:
        raise UserError(f"{folder} has {len(files):,} {split} images, fewer than the {count:,} needed")
    chosen = balanced(torch.tensor([label for _, label in files]), count)
    return [files[index] for index in chosen.tolist()]


@lru_cache(maxsize=8)
def _decode(
    files: tuple[tuple[Path, int], ...], size: int, square: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode images to size × size bytes, once per process: the centre square, or the whole image resized."""
    import numpy as np
    from PIL import Image

    pixels = torch.empty(len(files), size, size, 3, dtype=torch.uint8)
    for number, (path, _) in enumerate(files):
        image = read(path)
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        box = None if square else (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
        pixels[number] = torch.from_numpy(np.asarray(image).copy())
    return pixels, torch.tensor([label for _, label in files])


def _transform(augment: str, size: int, resize: int, square: bool, mean: Any, std: Any) -> Any:
    from torchvision.transforms import v2

    if augment == "resized-crop-flip":
        steps = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    elif augment == "pad-crop-flip":
        steps = [v2.Resize((size, size)), v2.RandomCrop(size, padding=size // 8), v2.RandomHorizontalFlip()]
    elif augment == "crop-flip":
        steps = [v2.Resize((resize, resize)), v2.RandomCrop(size), v2.RandomHorizontalFlip()]
    elif augment == "centre-crop-flip":
        steps = [v2.Resize((resize, resize) if square else resize), v2.CenterCrop(size)]
        steps.append(v2.RandomHorizontalFlip())
    else:
        steps = [v2.Resize((resize, resize) if square else resize), v2.CenterCrop(size)]
    steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    return v2.Compose(steps)
