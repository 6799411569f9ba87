"""Average precision, by COCO's own evaluation: AP, AP at IoU 0.5 and AP at IoU 0.75, of boxes and of masks.

The numbers are the first three of COCO's summary, times 100, as the paper's tables print them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from gradcent_lab.data.batches import Batch
from gradcent_lab.detection.coco import Library, library, quiet
from gradcent_lab.detection.data import DetectionSet, category_ids
from gradcent_lab.errors import UserError

BOXES = ("AP", "AP.5", "AP.75")  # table 8
BOXES_AND_MASKS = ("APb", "APb.5", "APb.75", "APm", "APm.5", "APm.75")  # table 9
PASTE = 0.5  # the probability from which a pixel belongs to a predicted mask


class Evaluator:
    """Runs a detector over a test set: `evaluate` of an `Experiment`."""

    def __init__(self, data: DetectionSet, masks: bool) -> None:
        if not data.truth["annotations"]:
            raise UserError(f"the test images of {data.source.name} have no objects: nothing can be measured")
        self.data, self.masks = data, masks
        self.categories = category_ids(data.source)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return BOXES_AND_MASKS if self.masks else BOXES

    def __call__(self, model: nn.Module, batches: Iterable[Batch], accelerator: Any) -> dict[str, float]:
        """Return every metric over all images, gathered from all processes."""
        from accelerate.utils import send_to_device

        detections: dict[int, list[dict[str, Any]]] = {}
        for batch in batches:
            images = send_to_device(batch.inputs, accelerator.device)
            for target, output in zip(batch.targets, model(images), strict=True):
                detections[int(target["image_id"])] = self.predictions(int(target["image_id"]), output)
        if accelerator.num_processes > 1:
            parts: list[Any] = [None] * accelerator.num_processes
            torch.distributed.all_gather_object(parts, detections)
            detections = {image: entries for part in parts for image, entries in part.items()}
        return self.score([entries for image in sorted(detections) for entries in detections[image]])

    def predictions(self, image: int, output: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        """Return one image's detections in COCO's form."""
        boxes = output["boxes"].cpu().clone()
        boxes[:, 2:] -= boxes[:, :2]  # x, y, width, height
        lines: list[dict[str, Any]] = [
            {"image_id": image, "category_id": self.categories[label - 1], "bbox": box, "score": score}
            for box, label, score in zip(
                boxes.tolist(), output["labels"].tolist(), output["scores"].tolist(), strict=True
            )
        ]
        if self.masks:
            for line, mask in zip(lines, output["masks"][:, 0].cpu(), strict=True):
                line["segmentation"] = encode(mask >= PASTE)
        return lines

    def score(self, lines: list[dict[str, Any]], use: Library | None = None) -> dict[str, float]:
        """Return the metrics of detections in COCO's form."""
        kinds = ("bbox", "segm") if self.masks else ("bbox",)
        values = [value for kind in kinds for value in average_precision(self.data.truth, lines, kind, use)]
        return dict(zip(self.names, values, strict=True))


def average_precision(
    truth: dict[str, Any], lines: list[dict[str, Any]], kind: str, use: Library | None = None
) -> list[float]:
    """Return AP, AP.5 and AP.75 in percent; `kind` is bbox or segm."""
    if not lines:
        return [0.0, 0.0, 0.0]
    use = use or library()
    with quiet():
        index = use.index()
        # the evaluators write into what they are given
        index.dataset = {**truth, "annotations": [dict(annotation) for annotation in truth["annotations"]]}
        index.createIndex()
        # loadRes takes lines with a box for boxes and derives area from it, so masks must come without one
        keep = ("image_id", "category_id", "score", "bbox" if kind == "bbox" else "segmentation")
        results = index.loadRes([{key: line[key] for key in keep} for line in lines])
        run = use.evaluator(index, results, kind)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [100.0 * max(float(value), 0.0) for value in run.stats[:3]]


def encode(mask: torch.Tensor) -> dict[str, Any]:
    """Return a boolean mask as a compressed run-length code."""
    import numpy as np

    code: dict[str, Any] = library().mask.encode(np.asfortranarray(mask.numpy(), dtype=np.uint8))
    return code
