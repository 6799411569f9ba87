"""Detections of both arms on the same test images, side by side."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradcent_lab.detection.coco import library
from gradcent_lab.report.figures.style import INK, arm_colour, caption, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def side_by_side(pairs: Sequence[tuple[str, list[dict[str, Any]]]], note: str = "") -> Figure:
    """Draw one row per arm (`pairs`: its name and its examples) and one column per image."""
    columns = len(pairs[0][1])
    figure, axes = new_figure(2.4 * columns, 2.15 * len(pairs) + 0.3, len(pairs), columns)
    for row, (arm, examples) in enumerate(pairs):
        for column, example in enumerate(examples):
            axis = axes[row * columns + column]
            _draw(axis, example, arm_colour(row))
            if column == 0:
                axis.set_ylabel(arm, color=arm_colour(row), fontweight="bold")
    caption(figure, note)
    return figure


def _draw(axis: Axes, example: dict[str, Any], colour: str) -> None:
    import numpy as np
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle
    from PIL import Image

    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(example["picture"]))).convert("RGB")) / 255.0
    height, width = picture.shape[:2]
    for detection in example["found"]:
        if "mask" in detection:
            code = {**detection["mask"], "counts": detection["mask"]["counts"].encode()}
            mask = Image.fromarray(library().mask.decode(code) * 255).resize((width, height))
            share = np.asarray(mask)[..., None] / 255.0 * 0.5
            picture = picture * (1 - share) + np.asarray(to_rgb(colour)) * share
    axis.imshow(picture, interpolation="bilinear")
    for x1, y1, x2, y2 in example["truth"]:
        edge: dict[str, Any] = {"fill": False, "ec": "white", "lw": 1.0, "ls": (0, (3, 2))}
        axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, **edge))
    for detection in example["found"]:
        x, y, w, h = detection["box"]
        axis.add_patch(Rectangle((x, y), w, h, fill=False, ec=colour, lw=1.5))
        text = f"{detection['name']} {detection['score']:.2f}"
        style = {"facecolor": colour, "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
        axis.text(x + 2, max(y, 9), text, fontsize=6.5, color="white", va="bottom", bbox=style, clip_on=True)
    axis.set(xticks=[], yticks=[], xlim=(0, width), ylim=(height, 0))
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    if not example["found"]:
        axis.set_xlabel("nothing found", fontsize=7.5, color=INK)
