"""Small detection sets for tests: where the real ones are, and a COCO folder of rectangles made on the spot."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradcent_lab.data import datasets as catalogue


def real(name: str) -> Path:
    """The data folder, or a skip that says what is missing."""
    root = os.environ.get("GRADCENT_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"{name} is not under GRADCENT_DATA")
    return Path(root)


def rectangle(x: float, y: float, w: float, h: float) -> list[float]:
    return [x, y, x + w, y, x + w, y + h, x, y + h]


def annotation(number: int, image: int, box: list[float], **more: Any) -> dict[str, Any]:
    outline = [rectangle(*box)] if all(abs(v) < 1e6 for v in box) else []
    plain = {"id": number, "image_id": image, "category_id": 3, "bbox": box, "iscrowd": 0}
    return {**plain, "area": box[2] * box[3], "segmentation": outline, **more}


def coco_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, annotations: list[dict[str, Any]], images: int = 4
) -> Path:
    """Write root/coco in the official layout: 40×30 images, categories 3 and 7."""
    from PIL import Image

    info = replace(catalogue.SETS["coco"], images={"train": images, "test": images})
    monkeypatch.setitem(catalogue.SETS, "coco", info)
    listed = [{"id": n, "file_name": f"{n:012}.jpg", "width": 40, "height": 30} for n in range(1, images + 1)]
    for split in ("train2017", "val2017"):
        folder = root / "coco" / split
        folder.mkdir(parents=True)
        for image in listed:
            Image.new("RGB", (40, 30), (20 * image["id"], 90, 200)).save(folder / image["file_name"])
        document = {
            "images": listed,
            "annotations": annotations,
            "categories": [{"id": 3, "name": "box"}, {"id": 7, "name": "ball"}],
        }
        (root / "coco" / "annotations").mkdir(exist_ok=True)
        (root / "coco" / "annotations" / f"instances_{split}.json").write_text(json.dumps(document))
    return root
