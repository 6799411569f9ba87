"""A few test images with what a run found in them, kept in its folder, and both arms drawn side by side.

`examples.json` holds small pictures and run-length codes, so a report needs neither the data nor the weights.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcent_lab.detection.coco import library
from gradcent_lab.detection.data import DetectionSet
from gradcent_lab.report.figures.style import INK, arm_colour, caption, new_figure, styled
from gradcent_lab.store.atomic_files import read_json
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradcent_lab.detection.metrics import Evaluator

LONG_SIDE = 320  # pixels of the small pictures
SHOWN = 0.5  # detections below this score are not drawn
MOST = 8  # detections kept of an image


@torch.no_grad()
def keep_examples(
    model: nn.Module, data: DetectionSet, evaluator: Evaluator, count: int
) -> list[dict[str, Any]]:
    """Return the first detections in `count` images spread over the test set, as JSON values."""
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
    """Return what a run kept, nothing where it kept none."""
    path = Path(record.path) / "examples.json"
    return list(read_json(path)) if path.exists() else []


@styled
def side_by_side(pairs: Sequence[tuple[str, list[dict[str, Any]]]], words: str = "") -> Figure:
    """Draw one row per arm (`pairs`: its name and its examples) and one column per image."""
    columns = len(pairs[0][1])
    figure, axes = new_figure(2.4 * columns, 2.15 * len(pairs) + 0.3, len(pairs), columns)
    for row, (arm, examples) in enumerate(pairs):
        for column, example in enumerate(examples):
            axis = axes[row * columns + column]
            _draw(axis, example, arm_colour(row))
            if column == 0:
                axis.set_ylabel(arm, color=arm_colour(row), fontweight="bold")
    caption(figure, words)
    return figure


def _draw(axis: Axes, example: dict[str, Any], colour: str) -> None:
    import numpy as np
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle
    from PIL import Image

    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(example["picture"]))).convert("RGB")) / 255.0
    height, width = picture.shape[:2]
    for found in example["found"]:
        if "mask" in found:
            code = {**found["mask"], "counts": found["mask"]["counts"].encode()}
            mask = Image.fromarray(library().mask.decode(code) * 255).resize((width, height))
            share = np.asarray(mask)[..., None] / 255.0 * 0.5
            picture = picture * (1 - share) + np.asarray(to_rgb(colour)) * share
    axis.imshow(picture, interpolation="bilinear")
    for x1, y1, x2, y2 in example["truth"]:
        edge: dict[str, Any] = {"fill": False, "ec": "white", "lw": 1.0, "ls": (0, (3, 2))}
        axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, **edge))
    for found in example["found"]:
        x, y, w, h = found["box"]
        axis.add_patch(Rectangle((x, y), w, h, fill=False, ec=colour, lw=1.5))
        text = f"{found['name']} {found['score']:.2f}"
        style = {"facecolor": colour, "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
        axis.text(x + 2, max(y, 9), text, fontsize=6.5, color="white", va="bottom", bbox=style, clip_on=True)
    axis.set(xticks=[], yticks=[], xlim=(0, width), ylim=(height, 0))
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    if not example["found"]:
        axis.set_xlabel("nothing found", fontsize=7.5, color=INK)
