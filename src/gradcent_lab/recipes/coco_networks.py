"""The networks of Tables 8 and 9 at each scale, by the paper's names, and the sizes of the small detectors."""

from __future__ import annotations

from typing import Any

from gradcent_lab.recipes.common import TINY_IMAGENET_WEIGHTS

SMALL_SIZES: dict[str, Any] = {
    "short": 128,
    "long": 192,
    "fpn": 64,
    "fc": 128,
    "anchor": 8,
    "proposals": (200, 100),  # kept for training and testing
    "samples": (64, 32),  # per image, first and second stage
    "detections": 20,
}
SMOKE_SIZES: dict[str, Any] = {
    **SMALL_SIZES,
    "short": 64,
    "long": 96,
    "fpn": 16,
    "fc": 32,
    "proposals": (40, 20),
}
_SCRATCH = {"norm": "bn", "trainable": 5}
_R18 = {"backbone": "R18", "pretrained": TINY_IMAGENET_WEIGHTS, "normalize": "half"}
_GN = {"norm": "gn", "head": "4conv1fc"}
NETWORKS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "R50": {"backbone": "R50", "pretrained": "torchvision"},
        "R50 (4c1f)": {"backbone": "R50", "pretrained": "torchvision", "head": "4conv1fc"},
        "R101": {"backbone": "R101", "pretrained": "torchvision"},
        "X101-32x4d": {"backbone": "X101-32x4d", "pretrained": "weights/resnext101_32x4d.safetensors"},
        "X101-64x4d": {"backbone": "X101-64x4d", "pretrained": "torchvision"},
        "R101GN": {
            "backbone": "R101",
            "pretrained": "weights/resnet101_gn.safetensors",
            "normalize": "bgr",
            **_GN,
        },
        "R50GN+WS": {
            "backbone": "R50",
            "pretrained": "weights/resnet50_gn_ws.safetensors",
            **_GN,
            "weight_standardization": True,
        },
    },
    "small": {
        "R50": _R18,
        "R50 (4c1f)": {**_R18, "head": "4conv1fc"},
        "R101": {"backbone": "R26", **_SCRATCH},
        "X101-32x4d": {"backbone": "X26-8x4d", **_SCRATCH},
        "X101-64x4d": {"backbone": "X26-16x4d", **_SCRATCH},
        "R101GN": {"backbone": "R26", **_SCRATCH, **_GN},
        "R50GN+WS": {"backbone": "R14", **_SCRATCH, **_GN, "weight_standardization": True},
    },
    "mini": {"R50": _R18, "R50GN+WS": {"backbone": "R14", **_SCRATCH, **_GN, "weight_standardization": True}},
    "smoke": {
        "R50": {"backbone": "R14", "trainable": 3},
        "R50 (4c1f)": {"backbone": "R14", "trainable": 3, "head": "4conv1fc"},
        "R101": {"backbone": "R14", **_SCRATCH},
        "X101-32x4d": {"backbone": "X26-8x4d", "trainable": 3},
        "X101-64x4d": {"backbone": "X26-16x4d", "trainable": 3},
        "R101GN": {"backbone": "R14", **_SCRATCH, **_GN},
        "R50GN+WS": {"backbone": "R14", **_SCRATCH, **_GN, "weight_standardization": True},
    },
}
