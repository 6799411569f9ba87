"""The library of the COCO metric: faster-coco-eval, or pycocotools if only that is installed.

Both have the same interface; a test checks that they give the same numbers.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from gradcent_lab.errors import UserError

# package → (module of COCO, module and name of the evaluator, module of masks)
LIBRARIES = {
    "faster-coco-eval": (
        "faster_coco_eval",
        "faster_coco_eval",
        "COCOeval_faster",
        "faster_coco_eval.core.mask",
    ),
    "pycocotools": ("pycocotools.coco", "pycocotools.cocoeval", "COCOeval", "pycocotools.mask"),
}


@dataclass(frozen=True)
class Library:
    """The parts that the lab uses: the index of annotations, the evaluator, and run-length coded masks."""

    name: str
    index: Any
    evaluator: Any
    mask: Any


@cache
def library(name: str | None = None) -> Library:
    """Return the library `name`, or the first that is installed."""
    for package in [name] if name is not None else LIBRARIES:
        index, evaluator, cls, mask = LIBRARIES[package]
        if importlib.util.find_spec(index.partition(".")[0]) is None:
            continue
        return Library(
            package,
            importlib.import_module(index).COCO,
            getattr(importlib.import_module(evaluator), cls),
            importlib.import_module(mask),
        )
    requested = name or "faster-coco-eval"
    raise UserError(f"detection needs {requested} for masks and average precision: pip install {requested}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what these libraries print."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def to_rle(segmentation: Any, height: int, width: int) -> dict[str, Any] | None:
    """Return polygons or a run-length code as one compressed run-length code; None if the mask is empty.

    Polygons with fewer than three corners or with values that are not finite have no area and are ignored.
    """
    mask = library().mask
    try:
        if isinstance(segmentation, list):
            polygons = [p for p in segmentation if len(p) >= 6 and all(abs(v) < 1e9 for v in p)]
            codes = mask.frPyObjects(polygons, height, width) if polygons else []
            code = mask.merge(codes) if codes else None
        elif isinstance(segmentation, dict) and isinstance(segmentation.get("counts"), list):
            code = mask.frPyObjects(segmentation, height, width)
        elif isinstance(segmentation, dict):
            code = segmentation
        else:
            code = None
        if code is None or list(code["size"]) != [height, width] or float(mask.area(code)) <= 0:
            return None
    except (TypeError, ValueError, KeyError):  # what the libraries raise for malformed masks
        return None
    return dict(code)
