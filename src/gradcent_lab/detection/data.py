"""Detection data: cleaned annotations, images with boxes, labels and masks, and their batches.

Annotations are cleaned as in torchvision's reference training, and every change is counted: crowds and images
without a usable box are left out of training, boxes are clipped to the image, boxes without area are dropped.
Evaluation includes crowds, which the metric ignores by its own rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from gradcent_lab.data.folders import read
from gradcent_lab.data.random_streams import generator
from gradcent_lab.detection.coco import library, to_rle
from gradcent_lab.detection.sources import Source, open_source
from gradcent_lab.errors import UserError

Target = dict[str, torch.Tensor]
MINIMUM_SIDE = 1.0  # as in the reference: images whose boxes are all one pixel wide or high are not used


@dataclass(frozen=True)
class Objects:
    """The cleaned objects of one image: boxes (x1, y1, x2, y2), classes from 1, masks as run-length codes."""

    boxes: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    codes: list[dict[str, Any] | None] = field(default_factory=list)


def clean(source: Source, masks: bool) -> tuple[dict[int, Objects], list[dict[str, Any]], Counter[str]]:
    """Return the objects of every image, the annotations for evaluation, and counts of what was changed.

    Without `masks` the outlines are not read, which saves a minute or two for COCO's 860,000 objects.
    """
    images = {image["id"]: image for image in source.document["images"]}
    labels = {id_: label for label, id_ in enumerate(category_ids(source), start=1)}
    objects = {id_: Objects() for id_ in images}
    truth: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for annotation in source.document["annotations"]:
        counts["annotations"] += 1
        image = images.get(annotation.get("image_id"))
        if image is None or annotation.get("category_id") not in labels:
            counts["unknown image or category, dropped"] += 1
            continue
        height, width = int(image["height"]), int(image["width"])
        box, clipped = _box(annotation.get("bbox"), height, width)
        if box is None:
            counts["box without area, dropped"] += 1
            continue
        counts["box clipped to the image"] += clipped
        code = to_rle(annotation.get("segmentation"), height, width) if masks else None
        counts["empty mask, kept as empty"] += masks and code is None
        crowd = bool(annotation.get("iscrowd", 0))
        cleaned = {key: annotation[key] for key in ("image_id", "category_id")}
        cleaned |= {"id": len(truth) + 1, "iscrowd": int(crowd)}
        cleaned["bbox"] = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
        cleaned["area"] = float(annotation.get("area") or cleaned["bbox"][2] * cleaned["bbox"][3])
        if masks:
            cleaned["segmentation"] = code or _empty_mask(height, width)
        truth.append(cleaned)
        if crowd:
            counts["crowd, not trained on"] += 1
            continue
        image_objects = objects[annotation["image_id"]]
        image_objects.boxes.append(box)
        image_objects.labels.append(labels[annotation["category_id"]])
        image_objects.codes.append(code)
    return objects, truth, Counter({key: count for key, count in counts.items() if count})


def category_ids(source: Source) -> list[int]:
    """Return the category ids of the set (COCO's are not contiguous); label i + 1 of the model is the i-th."""
    return [category["id"] for category in source.document["categories"]]


class DetectionSet(Dataset[tuple[torch.Tensor, Target]]):
    """One split of a set: an image in [0, 1] and its target, in torchvision's form."""

    def __init__(
        self, source: Source, *, train: bool, masks: bool, count: int | None = None, flip: bool = True
    ) -> None:
        self.source, self.train, self.masks, self.flip = source, train, masks, flip and train
        self.objects, truth, self.counts = clean(source, masks)
        images = sorted(source.document["images"], key=lambda image: image["id"])
        if train:
            usable = [image for image in images if _usable(self.objects[image["id"]])]
            self.counts["images without a usable box, not trained on"] = len(images) - len(usable)
            images = usable
        self.counts = Counter({key: number for key, number in self.counts.items() if number})
        if count is not None and count > len(images):
            raise UserError(f"{source.name} has {len(images)} usable {source.split} images, not {count}")
        if count is not None:
            order = torch.randperm(len(images), generator=generator("detection", source.name, source.split))
            images = [images[index] for index in sorted(order[:count].tolist())]
        self.images = images
        ids = {image["id"] for image in images}
        self.truth = {
            "info": {},
            "images": images,
            "annotations": [entry for entry in truth if entry["image_id"] in ids],
            "categories": source.document["categories"],
        }

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Target]:
        from torchvision.transforms.functional import pil_to_tensor

        entry = self.images[index]
        image = pil_to_tensor(read(self.source.images / entry["file_name"])).float() / 255
        height, width = image.shape[1:]
        if (height, width) != (entry["height"], entry["width"]):
            raise UserError(
                f"{self.source.images / entry['file_name']} is {width}×{height}, but its annotations say "
                f"{entry['width']}×{entry['height']}: unpack {self.source.name} again"
            )
        image_objects = self.objects[entry["id"]]
        target: Target = {
            "boxes": torch.tensor(image_objects.boxes, dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor(image_objects.labels, dtype=torch.int64),
            "image_id": torch.tensor(entry["id"]),
        }
        if self.masks and self.train:
            target["masks"] = _decode(image_objects.codes, height, width)
        if self.flip and torch.rand(()) < 0.5:
            image, target = _flipped(image, target)
        return image, target

    @staticmethod
    def collate(
        samples: list[tuple[torch.Tensor, Target]],
    ) -> tuple[list[torch.Tensor], list[Target]]:
        """Keep images of different sizes as a list; the model pads them."""
        return [image for image, _ in samples], [target for _, target in samples]


def open_detection(
    spec: Mapping[str, Any], root: Path | None, *, masks: bool
) -> tuple[DetectionSet, DetectionSet]:
    """Return training and test data for {"set": "coco", "train": 100, "eval": 50, "flip": True}."""
    parts = []
    for split, key in (("train", "train"), ("test", "eval")):
        source = open_source(spec["set"], root, split)
        parts.append(
            DetectionSet(
                source,
                train=split == "train",
                masks=masks,
                count=spec.get(key),
                flip=bool(spec.get("flip", True)),
            )
        )
    return parts[0], parts[1]


def _box(values: Any, height: int, width: int) -> tuple[list[float] | None, bool]:
    """Return (x1, y1, x2, y2) clipped to the image and whether it was clipped; None if no area is left."""
    try:
        x, y, w, h = (float(v) for v in values)
    except (TypeError, ValueError):
        return None, False
    whole = [x, y, x + w, y + h]
    if not all(abs(v) < 1e9 for v in whole):  # NaN too
        return None, False
    limits = (width, height, width, height)
    box = [min(max(v, 0.0), limit) for v, limit in zip(whole, limits, strict=True)]
    if box[2] <= box[0] or box[3] <= box[1]:
        return None, False
    # half a pixel is rounding in the annotation file and is not counted
    return box, any(abs(a - b) > 0.5 for a, b in zip(whole, box, strict=True))


def _empty_mask(height: int, width: int) -> Any:
    """Return the run-length code of an empty mask."""
    code = {"size": [height, width], "counts": [height * width]}
    return library().mask.frPyObjects(code, height, width)


def _usable(objects: Objects) -> bool:
    return any(x2 - x1 > MINIMUM_SIDE and y2 - y1 > MINIMUM_SIDE for x1, y1, x2, y2 in objects.boxes)


def _decode(codes: list[dict[str, Any] | None], height: int, width: int) -> torch.Tensor:
    masks = torch.zeros(len(codes), height, width, dtype=torch.uint8)
    for number, code in enumerate(codes):
        if code is not None:
            masks[number] = torch.from_numpy(library().mask.decode(code))
    return masks


def _flipped(image: torch.Tensor, target: Target) -> tuple[torch.Tensor, Target]:
    """Mirror the image with its boxes and masks."""
    width = image.shape[2]
    x1, y1, x2, y2 = target["boxes"].unbind(1)
    target = {**target, "boxes": torch.stack([width - x2, y1, width - x1, y2], 1)}
    if "masks" in target:
        target["masks"] = target["masks"].flip(2)
    return image.flip(2), target
