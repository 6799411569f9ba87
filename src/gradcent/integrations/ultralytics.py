"""Ultralytics: a callback that attaches GC when its trainer has built the optimizer.

    model = YOLO("yolo11n.yaml")
    gradcent.integrations.ultralytics.add_to(model)
    model.train(data="coco8.yaml", epochs=100)

Its trainer unscales and clips the gradients before it steps, so the order is clip, then centralize.
"""

from __future__ import annotations

from typing import Any

import torch

from . import attach_and_log, unwrapped
from ._first_batch import with_example


def add_to(model: Any, **options: Any) -> None:
    """Add the callback to a YOLO model (or any Ultralytics model or trainer); options as for `attach`."""
    model.add_callback("on_pretrain_routine_end", _Attach(options))


class _Attach:
    """The callback: an object, because with several GPUs Ultralytics pickles it for the processes it starts."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def __call__(self, trainer: Any) -> None:
        model = unwrapped(trainer.model)
        size = trainer.args.imgsz
        options = with_example(model, self.options, lambda: torch.zeros(1, 3, size, size))
        attach_and_log(trainer.optimizer, model, **options)
