"""Where detection sets are on disk and how their annotations are read: all are converted to COCO's format.

coco        coco/{train2017,val2017}/*.jpg, coco/annotations/instances_{train2017,val2017}.json
coco-mini   coco-mini/images/*.jpg, coco-mini/instances.json (images carry their official split)
penn-fudan  penn-fudan/images/*.jpg, penn-fudan/masks/*.png (pixel k is person k); every fourth for testing
balloon     balloon/{train,val}/*.jpg and via_region_data.json (VGG Image Annotator)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gradcent_lab.data.datasets import SETS, place
from gradcent_lab.detection.coco import library
from gradcent_lab.errors import UserError

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Source:
    """One split: the folder of its images and its annotations in COCO's form."""

    name: str
    split: str
    images: Path
    document: dict[str, Any]


def open_source(name: str, root: Path | None, split: str) -> Source:
    """Read one split of a set and check that it is complete."""
    if name not in READERS:
        raise UserError(f"unknown detection set {name!r}: choose one of {', '.join(READERS)}")
    folder = place(name, root)
    source = READERS[name](folder, split)
    _check(source, SETS[name].images[split])
    return source


def count_images(name: str, folder: Path) -> dict[str, int]:
    """Count the image files of a set without reading annotations (COCO's take a minute)."""
    if name == "coco-mini":
        images = _read_json(folder / "instances.json").get("images", [])
        splits = [image.get("coco_split") for image in images]
        return {"train": splits.count("train2017"), "test": splits.count("val2017")}
    if name == "penn-fudan":
        total = sum(1 for _ in (folder / "images").glob("*.jpg"))
        return {"train": total - total // 4, "test": total // 4}
    parts = ("train2017", "val2017") if name == "coco" else ("train", "val")
    return {
        split: sum(1 for _ in (folder / part).glob("*.jpg"))
        for split, part in zip(SPLITS, parts, strict=True)
    }


def _check(source: Source, expected: int) -> None:
    """Raise a one-line error if a set has no annotations, lacks images or is not complete."""
    document = source.document
    absent = [key for key in ("images", "annotations", "categories") if not document.get(key)]
    if absent:
        raise UserError(
            f"the {source.split} annotations of {source.name} have no {absent[0]}: unpack it again"
        )
    present = {path.name for path in source.images.iterdir()} if source.images.is_dir() else set()
    missing = [image["file_name"] for image in document["images"] if image["file_name"] not in present]
    if missing:
        raise UserError(
            f"{source.images} lacks {len(missing):,} of {len(document['images']):,} images, "
            f"{missing[0]} is the first: {SETS[source.name].where}"
        )
    if len(document["images"]) != expected:
        raise UserError(
            f"the {source.split} part of {source.name} has {len(document['images']):,} images, not {expected:,}: "
            f"{SETS[source.name].where}"
        )


@lru_cache(maxsize=4)
def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: unpack the set again") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not JSON ({error}): unpack the set again") from error
    if not isinstance(document, dict):
        raise UserError(f"{path} contains a {type(document).__name__}, not annotations: unpack it again")
    return document


def _coco(folder: Path, split: str) -> Source:
    name = "train2017" if split == "train" else "val2017"
    return Source("coco", split, folder / name, _read_json(folder / "annotations" / f"instances_{name}.json"))


def _coco_mini(folder: Path, split: str) -> Source:
    document = _read_json(folder / "instances.json")
    folder_name = "train2017" if split == "train" else "val2017"
    images = [image for image in document.get("images", []) if image.get("coco_split") == folder_name]
    ids = {image["id"] for image in images}
    annotations = [entry for entry in document.get("annotations", []) if entry.get("image_id") in ids]
    kept = {"images": images, "annotations": annotations, "categories": document.get("categories")}
    return Source("coco-mini", split, folder / "images", kept)


@lru_cache(maxsize=2)
def _penn_fudan(folder: Path, split: str) -> Source:
    """Every fourth image in the order of their names is for testing."""
    import numpy as np
    from PIL import Image

    mask = library().mask
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, path in enumerate(sorted((folder / "images").glob("*.jpg")), start=1):
        if (number % 4 == 0) != (split == "test"):
            continue
        masks = _mask_file(folder / "masks", path.stem)
        with Image.open(masks) as picture:
            people = np.asarray(picture)
        height, width = people.shape[:2]
        images.append({"id": number, "file_name": path.name, "height": height, "width": width})
        for person in range(1, int(people.max()) + 1):
            code = mask.encode(np.asfortranarray(people == person, dtype=np.uint8))
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 1,
                    "iscrowd": 0,
                    "segmentation": code,
                    "area": float(mask.area(code)),
                    "bbox": [float(v) for v in mask.toBbox(code)],
                }
            )
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "person"}]}
    return Source("penn-fudan", split, folder / "images", document)


def _mask_file(folder: Path, stem: str) -> Path:
    """Return the mask file; the official archive names the mask of `X.png` `X_mask.png`."""
    for name in (f"{stem}.png", f"{stem}_mask.png"):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} has no mask {stem}.png: unpack penn-fudan again")


def _balloon(folder: Path, split: str) -> Source:
    from PIL import Image

    split_folder = folder / ("train" if split == "train" else "val")
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, entry in enumerate(_read_json(split_folder / "via_region_data.json").values(), start=1):
        path = split_folder / entry["filename"]
        if not path.is_file():
            raise UserError(f"{path} is missing: {SETS['balloon'].where}")
        with Image.open(path) as picture:
            width, height = picture.size
        images.append({"id": number, "file_name": path.name, "height": height, "width": width})
        regions = entry["regions"]
        for region in regions.values() if isinstance(regions, dict) else regions:
            xs, ys = (region["shape_attributes"][key] for key in ("all_points_x", "all_points_y"))
            left, top = min(xs), min(ys)
            box = [left, top, max(xs) - left, max(ys) - top]
            corners = [float(v) for pair in zip(xs, ys, strict=True) for v in pair]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 1,
                    "iscrowd": 0,
                    "segmentation": [corners],
                    "area": float(box[2] * box[3]),
                    "bbox": [float(v) for v in box],
                }
            )
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "balloon"}]}
    return Source("balloon", split, split_folder, document)


READERS: dict[str, Callable[[Path, str], Source]] = {
    "coco": _coco,
    "coco-mini": _coco_mini,
    "penn-fudan": _penn_fudan,
    "balloon": _balloon,
}
