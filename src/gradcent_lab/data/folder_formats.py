"""Folder layouts of the image sets: functions from a folder to the (file, label) pairs of its splits.

Every set can be in {train,test}/CLASS/ folders; some sets can also be in their official layout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError

Samples = list[tuple[Path, int]]
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".gif"}


@lru_cache(maxsize=8)
def samples(name: str, folder: Path) -> tuple[dict[str, Samples], int]:
    """Return the training and test samples of a set and its number of classes."""
    reader = OFFICIAL.get(name)
    if (folder / "train").is_dir() and not (name == "tinyimagenet" and _is_tiny(folder)):
        return class_folders(folder)
    if reader is None:
        raise UserError(f"{folder} has no train/CLASS/ and test/CLASS/ folders of images")
    try:
        return reader(folder)
    except (FileNotFoundError, KeyError, ValueError) as error:
        raise UserError(f"{folder} does not have the layout of {name}: {error}") from error


def class_folders(folder: Path) -> tuple[dict[str, Samples], int]:
    """Read {train,test}/CLASS/**; the test images may also be in val/."""
    test = next((folder / word for word in ("test", "val", "validation") if (folder / word).is_dir()), None)
    if test is None:
        raise UserError(f"{folder} has train/ but no test/ or val/ folder")
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    if not classes:
        raise UserError(f"{folder / 'train'} has no class folders")
    unknown = sorted(p.name for p in test.iterdir() if p.is_dir() and p.name not in set(classes))
    if unknown:
        raise UserError(f"{test / unknown[0]} has no counterpart in {folder / 'train'}")
    number = {name: label for label, name in enumerate(classes)}
    return {
        split: [
            (path, number[name])
            for name in classes
            for path in _images(split_folder / name)  # sorted, so the order is the same on every machine
        ]
        for split, split_folder in (("train", folder / "train"), ("test", test))
    }, len(classes)


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def _cub(folder: Path) -> tuple[dict[str, Samples], int]:
    """Read images.txt, image_class_labels.txt and train_test_split.txt, one line per image."""

    def column(name: str) -> dict[str, str]:
        lines = (folder / name).read_text().split("\n")
        return dict(line.split(maxsplit=1) for line in lines if line)

    files, labels = column("images.txt"), column("image_class_labels.txt")
    training = column("train_test_split.txt")
    splits: dict[str, Samples] = {"train": [], "test": []}
    for key, file in files.items():
        split = "train" if training[key].strip() == "1" else "test"
        splits[split].append((folder / "images" / file.strip(), int(labels[key]) - 1))
    return splits, len(set(labels.values()))


def _aircraft(folder: Path) -> tuple[dict[str, Samples], int]:
    """Read data/images_variant_{trainval,test}.txt; training is `trainval`, as in the paper's table 6."""
    data = folder / "data"
    variants = [line.strip() for line in (data / "variants.txt").read_text().split("\n") if line.strip()]
    number = {name: label for label, name in enumerate(sorted(variants))}
    splits = {}
    for split, file_part in (("train", "trainval"), ("test", "test")):
        lines = (data / f"images_variant_{file_part}.txt").read_text().split("\n")
        pairs = [line.strip().split(" ", 1) for line in lines if line.strip()]
        splits[split] = [(data / "images" / f"{file}.jpg", number[name]) for file, name in pairs]
    return splits, len(number)


def _dogs(folder: Path) -> tuple[dict[str, Samples], int]:
    """Read Images/ with train_list.mat and test_list.mat."""
    splits, classes = {}, set()
    for split in ("train", "test"):
        table = _matlab(folder / f"{split}_list.mat")
        files = [str(row[0]) for row in table["file_list"].ravel()]
        labels = [int(label) - 1 for label in table["labels"].ravel()]
        splits[split] = [(folder / "Images" / f, label) for f, label in zip(files, labels, strict=True)]
        classes |= set(labels)
    return splits, len(classes)


def _cars(folder: Path) -> tuple[dict[str, Samples], int]:
    """Read torchvision's layout: cars_train, cars_test, devkit and cars_test_annos_withlabels.mat."""
    tables = {
        "train": (folder / "devkit" / "cars_train_annos.mat", folder / "cars_train"),
        "test": (folder / "cars_test_annos_withlabels.mat", folder / "cars_test"),
    }
    splits, classes = {}, set()
    for split, (file, images) in tables.items():
        rows = _matlab(file)["annotations"].ravel()
        pairs = [(images / str(row["fname"].item()), int(row["class"].item()) - 1) for row in rows]
        splits[split] = pairs
        classes |= {label for _, label in pairs}
    return splits, len(classes)


def _is_tiny(folder: Path) -> bool:
    return (folder / "val" / "val_annotations.txt").is_file()


def _tiny(folder: Path) -> tuple[dict[str, Samples], int]:
    """Read train/CLASS/images/ and val/images/ with val_annotations.txt."""
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    number = {name: label for label, name in enumerate(classes)}
    train = [(path, number[name]) for name in classes for path in _images(folder / "train" / name)]
    lines = (folder / "val" / "val_annotations.txt").read_text().split("\n")
    rows = [line.split("\t") for line in lines if line]
    return {
        "train": train,
        "test": [(folder / "val" / "images" / row[0], number[row[1]]) for row in rows],
    }, len(classes)


def _matlab(path: Path) -> Any:
    from scipy.io import loadmat

    return loadmat(path)


OFFICIAL: dict[str, Callable[[Path], tuple[dict[str, Samples], int]]] = {
    "cub200": _cub,
    "aircraft": _aircraft,
    "dogs": _dogs,
    "cars": _cars,
    "tinyimagenet": _tiny,
}
