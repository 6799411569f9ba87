"""The detectors of tables 8 and 9: torchvision's Faster R-CNN and Mask R-CNN on the paper's backbones.

A specification is plain data:
    backbone    a name of BACKBONES, as the paper names them
    masks       Mask R-CNN instead of Faster R-CNN
    norm        fixed statistics (BN's statistics fixed, its scales and shifts trained, as MMDetection does) | frozen
                (all of BN fixed) | bn | gn
    head        2fc | 4conv1fc, the box head
    weight_standardization   in backbone, FPN and heads, as a parametrization
    pretrained  "torchvision", a file below the data folder, or None
    trainable   stages of the backbone that train, from the last; 3 of 5 is MMDetection's frozen_stages=1
    short, long the sides images are resized to
    fpn, fc, anchor, proposals, samples, detections: sizes, smaller at small scales
    stem_stride, normalize: what the pretrained weights were trained with; "bgr" is Caffe's input, BGR from 0 to 255
                with only the mean subtracted, which Detectron's GN weights expect
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradcent_lab.errors import UserError
from gradcent_lab.models.options import load_weights, torchvision_weights, use_weight_standardization

# name → (bottleneck blocks?, blocks a stage, groups, width of a group, torchvision's name if it has weights)
BACKBONES: dict[str, tuple[bool, tuple[int, int, int, int], int, int, str | None]] = {
    "R50": (True, (3, 4, 6, 3), 1, 64, "resnet50"),
    "R101": (True, (3, 4, 23, 3), 1, 64, "resnet101"),
    "X101-32x4d": (True, (3, 4, 23, 3), 32, 4, None),
    "X101-64x4d": (True, (3, 4, 23, 3), 64, 4, "resnext101_64x4d"),
    "R18": (False, (2, 2, 2, 2), 1, 64, "resnet18"),
    "R14": (True, (1, 1, 1, 1), 1, 64, None),
    "R26": (True, (2, 2, 2, 2), 1, 64, None),
    "X26-8x4d": (True, (2, 2, 2, 2), 8, 4, None),
    "X26-16x4d": (True, (2, 2, 2, 2), 16, 4, None),
}
DEFAULTS: dict[str, Any] = {
    "masks": False,
    "norm": "frozen",
    "head": "2fc",
    "weight_standardization": False,
    "pretrained": None,
    "trainable": 3,
    "stem_stride": 2,
    "normalize": "imagenet",
    "short": 800,
    "long": 1333,
    "fpn": 256,
    "fc": 1024,
    "anchor": 32,
    "proposals": (2000, 1000),
    "samples": (256, 512),
    "detections": 100,
}
MEANS = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "half": ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
    # for RGB from 0 to 1; the order of the channels is exchanged in the first convolution
    "bgr": ([122.7717 / 255, 115.9465 / 255, 102.9801 / 255], [1 / 255, 1 / 255, 1 / 255]),
}


class FixedStatisticsBatchNorm(nn.BatchNorm2d):
    """BatchNorm that always uses its running statistics and never updates them; weight and bias train."""

    fixed_statistics = True

    def train(self, mode: bool = True) -> FixedStatisticsBatchNorm:
        """Stay in evaluation mode."""
        super().train(False)
        return self


def make(spec: Mapping[str, Any], classes: int, data: Path | None = None) -> nn.Module:
    """Build a detector for `classes` classes (the background, which torchvision counts, is added here)."""
    from torchvision.models.detection import FasterRCNN, MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

    unknown = [key for key in spec if key not in DEFAULTS and key != "backbone"]
    if unknown:
        raise UserError(
            f"a detector has no option {unknown[0]!r}: choose from backbone, {', '.join(DEFAULTS)}"
        )
    chosen = {**DEFAULTS, **spec}
    norm = _norm(chosen["norm"])
    inner = norm if chosen["norm"] == "gn" else None  # FPN and heads have a norm only where it is GN
    backbone = make_backbone(chosen, norm, inner, data)
    channels, fc = chosen["fpn"], chosen["fc"]
    sizes = tuple((chosen["anchor"] * 2**level,) for level in range(5))
    mean, std = MEANS[chosen["normalize"]]
    train, test = chosen["proposals"]
    options: dict[str, Any] = {
        "min_size": chosen["short"],
        "max_size": chosen["long"],
        "image_mean": mean,
        "image_std": std,
        "rpn_anchor_generator": AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes)),
        "rpn_pre_nms_top_n_train": train,
        "rpn_post_nms_top_n_train": train,
        "rpn_pre_nms_top_n_test": test,
        "rpn_post_nms_top_n_test": test,
        "rpn_batch_size_per_image": chosen["samples"][0],
        "box_batch_size_per_image": chosen["samples"][1],
        "box_detections_per_img": chosen["detections"],
        "box_head": _box_head(chosen["head"], channels, fc, inner),
        "box_predictor": _box_predictor(fc, classes + 1),
    }
    if chosen["masks"]:
        options["mask_head"] = MaskRCNNHeads(channels, (channels,) * 4, 1, norm_layer=inner)
        options["mask_predictor"] = MaskRCNNPredictor(channels, channels, classes + 1)
    model: nn.Module = (MaskRCNN if chosen["masks"] else FasterRCNN)(backbone, **options)
    if chosen["weight_standardization"]:
        # everywhere but in the RPN and in the last layers, as "GN+WS, all" of the paper's framework
        heads: Any = model.roi_heads
        for part in (model.backbone, heads.box_head, heads.mask_head):
            if isinstance(part, nn.Module):
                use_weight_standardization(part)
    return model


def make_backbone(
    chosen: Mapping[str, Any],
    norm: Callable[[int], nn.Module],
    inner: Callable[[int], nn.Module] | None,
    data: Path | None,
) -> nn.Module:
    """Build the residual network with its pyramid, load its weights and freeze its first stages."""
    from torchvision.models import resnet
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    name, pretrained = chosen["backbone"], chosen["pretrained"]
    if name not in BACKBONES:
        raise UserError(f"no backbone is called {name!r}: choose one of {', '.join(BACKBONES)}")
    bottleneck, blocks, groups, base, known = BACKBONES[name]
    block = resnet.Bottleneck if bottleneck else resnet.BasicBlock
    body = resnet.ResNet(block, list(blocks), groups=groups, width_per_group=base, norm_layer=norm)
    if pretrained == "torchvision":
        if known is None or chosen["norm"] == "gn":
            raise UserError(f"torchvision has no weights for {name} with {chosen['norm']}: name a file")
        state = torchvision_weights(known)
        body.load_state_dict(
            {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}, strict=False
        )
    elif pretrained:
        path = Path(pretrained)
        load_weights(body, path if path.is_absolute() or data is None else data / path)
        if chosen["normalize"] == "bgr":
            with torch.no_grad():
                body.conv1.weight.copy_(body.conv1.weight.flip(1))
    body.conv1.stride = (chosen["stem_stride"],) * 2
    _freeze(body, chosen["trainable"])
    outputs = [getattr(body, f"layer{stage}")[-1] for stage in range(1, 5)]
    widths = [(last.conv3 if bottleneck else last.conv2).out_channels for last in outputs]
    layers = {f"layer{stage}": str(stage - 1) for stage in range(1, 5)}
    backbone: nn.Module = BackboneWithFPN(body, layers, widths, chosen["fpn"], norm_layer=inner)
    return backbone


def _norm(name: str) -> Callable[[int], nn.Module]:
    from torchvision.ops import FrozenBatchNorm2d

    norms: dict[str, Callable[[int], nn.Module]] = {
        "frozen": FrozenBatchNorm2d,
        "fixed statistics": FixedStatisticsBatchNorm,
        "bn": nn.BatchNorm2d,
        "gn": group_norm,
    }
    if name not in norms:
        raise UserError(f"unknown norm {name!r}: choose one of {', '.join(norms)}")
    return norms[name]


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with 32 groups, fewer in narrow layers."""
    return nn.GroupNorm(math.gcd(32, channels), channels)


def _freeze(body: nn.Module, trainable: int) -> None:
    """Freeze all but the last `trainable` of layer4, layer3, layer2, layer1 and the stem."""
    if not 0 <= trainable <= 5:
        raise UserError(f"trainable={trainable}: a backbone has 5 stages, so 0 to 5 of them can train")
    stages = ["layer4", "layer3", "layer2", "layer1", "conv1"][:trainable] + (
        ["bn1"] if trainable == 5 else []
    )
    for name, parameter in body.named_parameters():
        if not name.startswith(tuple(stages)):
            parameter.requires_grad_(False)


def _box_head(kind: str, channels: int, fc: int, norm: Callable[[int], nn.Module] | None) -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, TwoMLPHead

    head: nn.Module
    if kind == "2fc":
        head = TwoMLPHead(channels * 7 * 7, fc)
    elif kind == "4conv1fc":
        head = FastRCNNConvFCHead((channels, 7, 7), [channels] * 4, [fc], norm_layer=norm)
    else:
        raise UserError(f"box head {kind!r} is not known: 2fc or 4conv1fc")
    return head


def _box_predictor(fc: int, outputs: int) -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

    predictor: nn.Module = FastRCNNPredictor(fc, outputs)
    return predictor


def trained(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
