"""Data sets by name: `open_set({"set": "cifar100", "train": 10000}, root)` gives training and test data.

A specification is plain data and so part of a run's configuration:
    set       a name of datasets.SETS, or "folder" with `path`, any folder of {train,test}/CLASS/ images
    train     number of training images (a fixed, balanced choice); all if it is left out
    eval      the same for evaluation
    size      pixels on a side of what the network sees
    resize    pixels on a side before the crop, if it is not `size`
    square    resize to a square, instead of by the short side
    augment   "pad-crop-flip" | "resized-crop-flip" | "crop-flip" | "centre-crop-flip" | "none"
    memory    decode everything once and keep it (small sets) instead of reading from disk every time
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradcent_lab.data.datasets import SETS, data_root, find, place
from gradcent_lab.errors import UserError

AUGMENTATIONS = ("pad-crop-flip", "resized-crop-flip", "crop-flip", "centre-crop-flip", "none")


def open_set(spec: Mapping[str, Any], root: Path | None) -> tuple[Any, Any, int]:
    """Return training data, evaluation data and the number of classes."""
    name = spec["set"]
    augment = spec.get("augment", "none")
    if augment not in AUGMENTATIONS:
        raise UserError(f"unknown augmentation {augment!r}: choose one of {', '.join(AUGMENTATIONS)}")
    if name in ("cifar100", "cifar10", "digits", "fashionmnist"):
        from gradcent_lab.data.memory import open_in_memory

        return open_in_memory(spec, root)
    if name in SETS and SETS[name].task != "classification":
        raise UserError(f"{name} is a {SETS[name].task} set, which the {SETS[name].task} recipes read")
    if name in SETS or name == "folder":
        from gradcent_lab.data.folders import open_folder

        return open_folder(spec, root)
    raise UserError(f"unknown data set {name!r}: choose one of {', '.join(SETS)}, or folder")


__all__ = ["AUGMENTATIONS", "SETS", "data_root", "find", "open_set", "place"]
