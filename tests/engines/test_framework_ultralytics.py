"""Ultralytics: a real training run of a small classifier on a few images; the sums of weight vectors stay."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_examples import drift_in_example

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


def test_the_callback_goes_along_to_other_processes() -> None:
    """With several GPUs Ultralytics pickles trainer and callbacks for the processes that train."""
    from gradcent.integrations.ultralytics import add_to

    model = ultralytics.YOLO("yolo11n-cls.yaml")
    add_to(model, at="update")
    callback = pickle.loads(pickle.dumps(model.callbacks["on_pretrain_routine_end"][-1]))
    trainer = SimpleNamespace(model=torch.nn.Sequential(torch.nn.Linear(5, 3)))
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters())
    callback(trainer)
    attachment = gradcent.attached(trainer.optimizer)
    assert attachment is not None
    assert attachment.options.at == "update"


def test_its_own_optimizer_wants_to_be_told_of_its_decay() -> None:
    """`optimizer="auto"` takes MuSGD for long runs: λw joins its SGD half, but not the half that is orthogonalized."""
    from ultralytics.optim import MuSGD

    def made(net: torch.nn.Module) -> Any:
        groups = [{"params": [net.weight], "use_muon": True}, {"params": [net.bias], "use_muon": False}]
        return MuSGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1)

    net = torch.nn.Linear(5, 3)
    with pytest.raises(ValueError, match="decay='decoupled'"):
        gradcent.attach(made(net), net)
    ours, theirs = copy.deepcopy(net), copy.deepcopy(net)
    optimizer, plain = gradcent.attach(made(ours), ours, decay="decoupled"), made(theirs)
    for _ in range(3):
        gradient = torch.randn(3, 5)
        for each in (ours, theirs):
            each.weight.grad, each.bias.grad = gradient.clone(), torch.ones(3)
        theirs.weight.grad -= gradient.mean(1, keepdim=True)
        optimizer.step()
        plain.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


@pytest.mark.slow
def test_example(verified: Any) -> None:
    what = "examples/integrations/with_ultralytics.py: weight sums stay, float32"
    verified("Ultralytics", "ultralytics", what, drift_in_example("with_ultralytics"), 1e-6)
