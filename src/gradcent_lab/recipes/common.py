"""What several recipes share: the momentum switch, the optimizer's settings, milestones, smoke wording."""

from __future__ import annotations

from typing import Any

from gradcent_lab.recipes.recipe import Switch, Switches

SMOKE = "checks that it runs, shows nothing else"
TINY_IMAGENET_WEIGHTS = "weights/resnet18_tinyimagenet200_fp16.safetensors"
MOMENTUM = Switch(
    ("released", "paper"),
    "released code and PyTorch: m = βm + ĝ; Algorithm 1 prints m = βm + (1 − β)ĝ (dampening β)",
)


def sgdm(switches: Switches, **options: Any) -> dict[str, Any]:
    """Return the settings of SGD with momentum, as the switch `momentum` says."""
    dampening = {"dampening": 0.9} if switches["momentum"] == "paper" else {}
    return {"name": "SGDM", **options, **dampening}


def milestones(epochs: int, every: float) -> list[int]:
    """Return the epochs after which the learning rate drops, a fraction `every` of the run apart."""
    step = max(1, round(epochs * every))
    return list(range(step, epochs, step))
