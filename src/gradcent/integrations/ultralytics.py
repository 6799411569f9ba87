"""Ultralytics: a callback that attaches GC when its trainer has built the optimizer.

    model = YOLO("yolo11n.yaml")
    gradcent.integrations.ultralytics.add_to(model)
    model.train(data="coco8.yaml", epochs=100)

Its trainer unscales and clips the gradients before it steps, so the order is clip, then centralize.
"""

from __future__ import annotations

from typing import Any

from . import attach_and_say, innermost


def add_to(model: Any, **options: Any) -> None:
    """Add the callback to a YOLO model (or any Ultralytics model or trainer); options as for `attach`."""

    def on_pretrain_routine_end(trainer: Any) -> None:
        attach_and_say(innermost(trainer.optimizer), _unwrapped(trainer.model), **options)

    model.add_callback("on_pretrain_routine_end", on_pretrain_routine_end)


def _unwrapped(model: Any) -> Any:
    return getattr(model, "module", model)
