"""Ultralytics: a real training run of a small classifier on a few images; the sums of weight vectors stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gradcent

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
ultralytics = pytest.importorskip("ultralytics")


def images(folder: Path) -> Path:
    """Eight noisy squares in two classes."""
    image = pytest.importorskip("PIL.Image")
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for label, level in (("dark", 40), ("light", 200)):
            (folder / split / label).mkdir(parents=True)
            for index in range(4):
                pixels = level + torch.randint(-30, 30, (32, 32, 3), generator=generator)
                image.fromarray(pixels.to(torch.uint8).numpy()).save(folder / split / label / f"{index}.png")
    return folder


def test_training_keeps_the_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: Any) -> None:
    from gradcent.integrations.ultralytics import add_to

    monkeypatch.chdir(tmp_path)
    model = ultralytics.YOLO("yolo11n-cls.yaml")
    add_to(model, at="update")
    seen: dict[str, Any] = {}

    def start(trainer: Any) -> None:
        seen["plan"] = gradcent.attached(trainer.optimizer).plan  # type: ignore[union-attr]
        seen["start"] = {n: p.detach().double().clone() for n, p in trainer.model.named_parameters()}

    def end(trainer: Any) -> None:
        seen["end"] = {n: p.detach().double().clone() for n, p in trainer.model.named_parameters()}

    model.add_callback("on_train_start", start)
    model.add_callback("on_train_end", end)
    model.train(
        data=str(images(tmp_path / "squares")),
        epochs=2,
        imgsz=32,
        batch=4,
        nbs=4,
        warmup_epochs=0,
        workers=0,
        device="cpu",
        plots=False,
        val=False,
        amp=False,
        optimizer="AdamW",
        lr0=0.01,
        verbose=False,
    )
    centralized = [entry.name for entry in seen["plan"].entries if entry.centralized]
    assert len(centralized) > 30
    moved = max((seen["end"][name] - seen["start"][name]).abs().max().item() for name in centralized)
    assert moved > 1e-3
    found = max(
        (seen["end"][name] - seen["start"][name]).flatten(1).mean(1).abs().max().item()
        for name in centralized
    )
    verified(
        "Ultralytics",
        "ultralytics",
        "YOLO11n-cls trained, AdamW at the update: weight sums stay",
        found,
        1e-6,
    )
