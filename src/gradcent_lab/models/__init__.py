"""The networks of the paper's tables, by the paper's names, with options that compose.

`make({"name": "R18", "width": 16, "norm": "gn"}, classes=100)`: a specification is plain data, so it is part
of a run's configuration. The networks for small images are defined here; the ImageNet ones are torchvision's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gradcent_lab.errors import UserError
from gradcent_lab.models.dense import DenseNet
from gradcent_lab.models.options import (
    load_weights,
    torchvision_weights,
    use_group_norm,
    use_weight_standardization,
)
from gradcent_lab.models.plain import PlainNet
from gradcent_lab.models.residual import Basic, Bottleneck, ResidualNet

_RESNEXT: dict[str, Any] = {"stem": 64, "stem_kernel": 1, "expansion": 2, "groups": 4}
# name → (builder, the option that scales its width, the value in the paper)
NETWORKS: dict[str, tuple[Callable[..., nn.Module], str, int]] = {
    "R8": (partial(ResidualNet, Basic, (1, 1, 1)), "width", 16),
    "R14": (partial(ResidualNet, Bottleneck, (1, 1, 1, 1)), "width", 64),
    "R26": (partial(ResidualNet, Bottleneck, (2, 2, 2, 2)), "width", 64),
    "R18": (partial(ResidualNet, Basic, (2, 2, 2, 2)), "width", 64),
    "R50": (partial(ResidualNet, Bottleneck, (3, 4, 6, 3)), "width", 64),
    "R101": (partial(ResidualNet, Bottleneck, (3, 4, 23, 3)), "width", 64),
    "X29": (partial(ResidualNet, Bottleneck, (3, 3, 3), **_RESNEXT), "width", 256),
    "V11": (PlainNet, "width", 64),
    "D63": (partial(DenseNet, (3, 6, 12, 8)), "growth", 32),
    "D121": (partial(DenseNet, (6, 12, 24, 16)), "growth", 32),
}
FROM_TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101")


def make(spec: Mapping[str, Any], classes: int, data: Path | None = None) -> nn.Module:
    """Build a network from its specification.

    Keys: name; width (or growth); norm: bn | gn; groups of gn (32 by default, fewer in layers whose channels 32
    does not divide); weight_standardization; pretrained: a file below the data folder or an absolute path, or
    "torchvision" (from its cache; downloaded with `--download`).
    """
    spec = dict(spec)
    name = spec.pop("name")
    norm, groups = spec.pop("norm", "bn"), spec.pop("groups", None)
    standardize = spec.pop("weight_standardization", False)
    pretrained, stem_stride = spec.pop("pretrained", None), spec.pop("stem_stride", None)
    if name in NETWORKS:
        builder, option, default = NETWORKS[name]
        model = builder(classes=classes, **{option: spec.pop(option, default)})
    elif name in FROM_TORCHVISION:
        model = _torchvision(name, classes, pretrained == "torchvision")
    else:
        known = ", ".join([*NETWORKS, *FROM_TORCHVISION])
        raise UserError(f"unknown network {name!r}: choose one of {known}")
    if spec:
        raise UserError(f"network {name} has no option {next(iter(spec))!r}")
    if stem_stride is not None:
        stem = model.get_submodule("conv1")
        assert isinstance(stem, nn.Conv2d)
        stem.stride = (stem_stride, stem_stride)
    if pretrained and pretrained != "torchvision":
        load_weights(model, _find(pretrained, data))
    if norm == "gn":
        use_group_norm(model, groups)
    elif norm != "bn":
        raise UserError(f"unknown norm {norm!r}: choose bn or gn")
    elif groups is not None:
        raise UserError(f"groups={groups!r} belongs to norm gn: this network has norm bn")
    return use_weight_standardization(model) if standardize else model


def _torchvision(name: str, classes: int, pretrained: bool) -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model(name)
    if pretrained:
        model.load_state_dict(torchvision_weights(name))
    if classes != 1000:
        head = model.get_submodule("fc")
        assert isinstance(head, nn.Linear)
        model.fc = nn.Linear(head.in_features, classes)
    return model


def _find(pretrained: str, data: Path | None) -> Path:
    path = Path(pretrained)
    if path.is_absolute() or data is None:
        return path
    return data / path
