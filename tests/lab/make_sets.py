"""Tiny image sets in the official layouts, for tests where the real ones are absent."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image


def image(path: Path, value: int, size: int = 40) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((size, size + 8, 3), value % 256, dtype=np.uint8)
    pixels[: size // 2] = (value * 7) % 256
    Image.fromarray(pixels).save(path)


def class_folders(
    folder: Path, classes: int = 4, train: int = 6, test: int = 4, test_name: str = "test"
) -> None:
    for label in range(classes):
        for split, count in (("train", train), (test_name, test)):
            for number in range(count):
                image(folder / split / f"class{label}" / f"{number}.png", 40 * label + number)


def cifar100(folder: Path, train: int, test: int) -> None:
    folder.mkdir(parents=True)
    for name, count in (("train.bin", train), ("test.bin", test)):
        rows = np.zeros((count, 3074), dtype=np.uint8)
        rows[:, 1] = np.arange(count) % 100
        rows[:, 2:] = np.arange(count)[:, None] % 251
        rows.tofile(folder / name)


def cub200(folder: Path, classes: int = 2, each: int = 20) -> None:
    names, labels, split = [], [], []
    for key in range(classes * each):
        file = f"{key % classes + 1:03d}.Bird/bird_{key}.jpg"
        image(folder / "images" / file, key)
        names.append(f"{key + 1} {file}")
        labels.append(f"{key + 1} {key % classes + 1}")
        split.append(f"{key + 1} {1 if key < classes * each / 2 else 0}")
    (folder / "images.txt").write_text("\n".join(names) + "\n")
    (folder / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    (folder / "train_test_split.txt").write_text("\n".join(split) + "\n")


def aircraft(folder: Path, classes: int = 2, each: int = 20) -> None:
    place = folder / "data"
    lines = {"trainval": [], "test": []}
    variants = [f"Model {letter}-{number}" for number, letter in enumerate("AB"[:classes])]
    for key in range(classes * each):
        image(place / "images" / f"{key:07d}.jpg", key)
        lines["trainval" if key < classes * each / 2 else "test"].append(
            f"{key:07d} {variants[key % classes]}"
        )
    (place / "variants.txt").write_text("\n".join(variants) + "\n")
    for word, rows in lines.items():
        (place / f"images_variant_{word}.txt").write_text("\n".join(rows) + "\n")


def dogs(folder: Path, classes: int = 2, each: int = 20) -> None:
    from scipy.io import savemat

    for split in ("train", "test"):
        files, labels = [], []
        for key in range(classes * each // 2):
            file = f"n0{key % classes}-dog/{split}_{key}.jpg"
            image(folder / "Images" / file, key)
            files.append(file)
            labels.append(key % classes + 1)
        column = np.empty((len(files), 1), dtype=object)
        column[:, 0] = files
        savemat(folder / f"{split}_list.mat", {"file_list": column, "labels": np.array(labels)[:, None]})


def cars(folder: Path, classes: int = 2, each: int = 20) -> None:
    from scipy.io import savemat

    for split, file in (
        ("train", folder / "devkit" / "cars_train_annos.mat"),
        ("test", folder / "cars_test_annos_withlabels.mat"),
    ):
        count = classes * each // 2
        rows = np.zeros((1, count), dtype=[("class", object), ("fname", object)])
        for key in range(count):
            image(folder / f"cars_{split}" / f"{key:05d}.jpg", key)
            rows[0, key] = (key % classes + 1, f"{key:05d}.jpg")
        file.parent.mkdir(parents=True, exist_ok=True)
        savemat(file, {"annotations": rows})


def tinyimagenet(folder: Path, classes: int = 2, each: int = 10) -> None:
    rows = []
    for label in range(classes):
        for key in range(each):
            image(folder / "train" / f"n{label}" / "images" / f"n{label}_{key}.png", key)
            image(folder / "val" / "images" / f"val_{label}_{key}.png", key)
            rows.append(f"val_{label}_{key}.png\tn{label}\t0\t0\t1\t1")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")


def idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())
