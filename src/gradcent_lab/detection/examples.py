"""A few test images with a run's detections, kept in the run's folder.

`examples.json` holds small pictures and run-length codes, so a report needs neither the data nor the weights.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcent_lab.detection.data import DetectionSet
from gradcent_lab.store.atomic_files import read_json
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from gradcent_lab.detection.metrics import Evaluator

LONG_SIDE = 320  # pixels of the stored pictures
SHOWN = 0.5  # detections below this score are not drawn
MOST = 8  # detections stored per image


@torch.no_grad()
def keep_examples(
    model: nn.Module, data: DetectionSet, evaluator: Evaluator, count: int
) -> list[dict[str, Any]]:
    """Return the detections in `count` images spread over the test set, as JSON values."""
    device = next(model.parameters()).device
    names = {category["id"]: category["name"] for category in data.truth["categories"]}
    kept = []
    for number in range(min(count, len(data))):
        index = number * len(data) // min(count, len(data))
        image, target = data[index]
        scale = min(1.0, LONG_SIDE / max(image.shape[1:]))
        lines = evaluator.predictions(int(target["image_id"]), model([image.to(device)])[0])
        best = sorted(lines, key=lambda line: -line["score"])[:MOST]
        kept.append(
            {
                "file_name": data.images[index]["file_name"],
                "picture": _picture(image, scale),
                "truth": [[v * scale for v in box] for box in target["boxes"].tolist()],
                "found": [_line(line, scale, names) for line in best if line["score"] >= SHOWN],
            }
        )
    return kept


def _line(line: dict[str, Any], scale: float, names: dict[int, str]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "box": [v * scale for v in line["bbox"]],
        "score": line["score"],
        "name": names[line["category_id"]],
    }
    if "segmentation" in line:
        code = line["segmentation"]
        kept["mask"] = {"size": list(code["size"]), "counts": code["counts"].decode()}
    return kept


def _picture(image: torch.Tensor, scale: float) -> str:
    from torchvision.transforms.functional import to_pil_image

    picture = to_pil_image(image)
    if scale < 1:
        picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=80)
    return base64.b64encode(stream.getvalue()).decode()


def load_examples(record: RunRecord) -> list[dict[str, Any]]:
    """Return the examples of a run; empty if it stored none."""
    path = Path(record.path) / "examples.json"
    return list(read_json(path)) if path.exists() else []
