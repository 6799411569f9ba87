"""Ultralytics with GC: a callback on the model. Trains a tiny YOLO classifier on eight squares."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from ultralytics import YOLO

import gradcent
from gradcent.integrations.ultralytics import add_to


def images(folder: Path) -> Path:
    for split in ("train", "val"):
        for label, level in (("dark", 40), ("light", 200)):
            (folder / split / label).mkdir(parents=True)
            for index in range(4):
                pixels = level + torch.randint(-30, 30, (32, 32, 3))
                Image.fromarray(pixels.to(torch.uint8).numpy()).save(folder / split / label / f"{index}.png")
    return folder


def main() -> None:
    seen: dict[str, Any] = {}

    def start(trainer: Any) -> None:
        seen["before"] = {name: each.detach().clone() for name, each in trainer.model.named_parameters()}

    def end(trainer: Any) -> None:
        after, plan = dict(trainer.model.named_parameters()), gradcent.attached(trainer.optimizer).plan
        names = [entry.name for entry in plan.entries if entry.centralized]
        moved = [(after[name].detach() - seen["before"][name]).flatten(1) for name in names]
        seen["drift"], seen["plan"] = max(each.mean(1).abs().max().item() for each in moved), plan

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        model = YOLO("yolo11n-cls.yaml")
        add_to(model, at="update")  # the one line
        model.add_callback("on_train_start", start)
        model.add_callback("on_train_end", end)
        model.train(
            data=str(images(Path(folder) / "squares")),
            epochs=1,
            imgsz=32,
            batch=4,
            workers=0,
            device="cpu",
            plots=False,
            val=False,
            optimizer="AdamW",
        )
        os.chdir("/")
    print(seen["plan"].summary())
    print(f"largest drift of a weight vector's mean: {seen['drift']:.1e}")


if __name__ == "__main__":
    main()
