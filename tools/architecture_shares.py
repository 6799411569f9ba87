"""Record how much of the gradient GC removes in published architectures, in their first ten steps.

    python tools/architecture_shares.py [NAME …]

Every architecture starts from random weights and takes ten steps of SGD without GC on Mini-ImageNet images at 96 px,
batches of 16. A line of results/architecture_shares.jsonl is one architecture; finished ones are kept.
GRADCENT_DATA names the folder with mini-imagenet/.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

import gradcent

TARGET = Path(__file__).resolve().parent.parent / "results" / "architecture_shares.jsonl"
STEPS, BATCH, SIZE, SEEDS, CLASSES = 10, 16, 96, (0,), 100
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEARNING_RATE, MOMENTUM = 0.01, 0.9

vision = torchvision.models
group_norm = functools.partial(nn.GroupNorm, 32)

# name shown → (normalization, how to build it)
ARCHITECTURES: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "VGG-11": ("none", lambda: vision.vgg11(num_classes=CLASSES)),
    "VGG-11 with BN": ("BatchNorm", lambda: vision.vgg11_bn(num_classes=CLASSES)),
    "ResNet-18": ("BatchNorm", lambda: vision.resnet18(num_classes=CLASSES)),
    "ResNet-50": ("BatchNorm", lambda: vision.resnet50(num_classes=CLASSES)),
    "ResNet-50 with GN": (
        "GroupNorm",
        lambda: vision.resnet50(num_classes=CLASSES, norm_layer=lambda channels: group_norm(channels)),
    ),
    "ResNet-50 BiT": (
        "GroupNorm and weight standardization",
        lambda: timm.create_model("resnetv2_50x1_bit", num_classes=CLASSES),
    ),
    "DenseNet-121": ("BatchNorm", lambda: vision.densenet121(num_classes=CLASSES)),
    "MobileNetV3-Large": ("BatchNorm", lambda: vision.mobilenet_v3_large(num_classes=CLASSES)),
    "EfficientNet-B0": ("BatchNorm", lambda: vision.efficientnet_b0(num_classes=CLASSES)),
    "RegNetY-400MF": ("BatchNorm", lambda: vision.regnet_y_400mf(num_classes=CLASSES)),
    "ConvNeXt-T": ("LayerNorm", lambda: vision.convnext_tiny(num_classes=CLASSES)),
    "Swin-T": ("LayerNorm", lambda: vision.swin_t(num_classes=CLASSES)),
    "ViT-S/16": (
        "LayerNorm",
        lambda: timm.create_model("vit_small_patch16_224", img_size=SIZE, num_classes=CLASSES),
    ),
    "MLP-Mixer-S/16": (
        "LayerNorm",
        lambda: timm.create_model("mixer_s16_224", img_size=SIZE, num_classes=CLASSES),
    ),
    "PoolFormer-S12": (
        "GroupNorm, one group",
        lambda: timm.create_model("poolformer_s12", num_classes=CLASSES),
    ),
}


def read_image(path: Path) -> Tensor:
    """Return an image as a normalized tensor of 96 × 96 pixels."""
    with Image.open(path) as image:
        pixels = torch.frombuffer(
            bytearray(image.convert("RGB").resize((SIZE, SIZE)).tobytes()), dtype=torch.uint8
        )
    values = pixels.view(SIZE, SIZE, 3).permute(2, 0, 1).float() / 255
    return (values - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ten batches of random training images."""
    root = Path(os.environ["GRADCENT_DATA"]) / "mini-imagenet" / "train"
    classes = sorted(path.name for path in root.iterdir())
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((root / name).iterdir())]
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
    for step in range(STEPS):
        chosen = [files[index] for index in order[step * BATCH : (step + 1) * BATCH]]
        yield (
            torch.stack([read_image(path) for path, _ in chosen]),
            torch.tensor([label for _, label in chosen]),
        )


def measure(build: Callable[[], nn.Module], seed: int) -> tuple[list[float], gradcent.Plan]:
    """Return the share removed in each step, and the plan."""
    torch.manual_seed(seed)
    model = build().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    monitor: gradcent.Monitor | None = None
    shares = []
    for images, labels in batches(seed):
        if monitor is None:
            plan = gradcent.explain(model, example=images[:2])
            monitor = gradcent.Monitor(model, every=1, plan=plan)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        readings = monitor.update()
        total = sum(reading.energy for reading in readings)
        shares.append(sum(reading.removed * reading.energy for reading in readings) / total)
        optimizer.step()
    return shares, plan


def record(name: str) -> dict[str, Any]:
    """Measure one architecture and return its line."""
    norm, build = ARCHITECTURES[name]
    shares = []
    for seed in SEEDS:
        steps, plan = measure(build, seed)
        shares.append([round(share, 4) for share in steps])
    inputs = [entry for entry in plan.entries if entry.centralized and entry.role == "input"]
    hidden = [entry.level for entry in plan.entries if entry.centralized and entry.role == "hidden"]
    levels = [level for level in hidden if level is not None]
    return {
        "name": name,
        "norm": norm,
        "removed": round(statistics.fmean(share for steps in shares for share in steps), 4),
        "shares": shares,
        "input_level": round(inputs[0].level, 4) if inputs and inputs[0].level is not None else None,
        "median_hidden_level": round(statistics.median(levels), 4) if levels else None,
        "weights": sum(entry.numel for entry in plan.entries),
        "versions": {
            "torch": torch.__version__.split("+")[0],
            "torchvision": torchvision.__version__.split("+")[0],
            "timm": timm.__version__,
        },
    }


def main(names: list[str]) -> None:
    """Append a line for every architecture that has none yet."""
    lines = [json.loads(line) for line in TARGET.read_text().splitlines()] if TARGET.exists() else []
    known = {line["name"] for line in lines}
    for name in names or ARCHITECTURES:
        if name in known:
            continue
        line = record(name)
        with TARGET.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name}: {100 * line['removed']:.1f} %", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Record the share of the gradient that GC removes, by architecture."
    )
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    main(parser.parse_args().names)
