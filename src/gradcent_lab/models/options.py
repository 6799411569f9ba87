"""Options that compose with any network: group normalization, weight standardization, pretrained weights."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from gradcent_lab.errors import UserError

DOWNLOAD = "GRADCENT_DOWNLOAD"  # set to 1 by `gradcent run --download`


def use_group_norm(model: nn.Module, groups: int | None = None, prefix: str = "") -> nn.Module:
    """Replace every BatchNorm2d by GroupNorm (Wu & He 2018).

    With `groups`, every layer has that many. Without, layers have 32, and as many as 32 and the channels have as
    common divisor where 32 does not divide them: a layer of at most 32 channels then has one channel per group, which
    is instance normalization.
    """
    if groups is not None and (isinstance(groups, bool) or not isinstance(groups, int) or groups < 1):
        raise UserError(f"groups={groups!r}: give the number of groups of GroupNorm, 1 or more")
    for name, child in list(model.named_children()):
        if isinstance(child, nn.BatchNorm2d):
            channels = child.num_features
            if groups is not None and channels % groups:
                raise UserError(f"groups={groups} does not divide the {channels} channels of {prefix}{name}")
            setattr(model, name, nn.GroupNorm(groups or math.gcd(32, channels), channels))
        else:
            use_group_norm(child, groups, f"{prefix}{name}.")
    return model


class Standardize(nn.Module):
    """Weight standardization (Qiao et al. 2019): every weight vector gets mean 0 and standard deviation 1.

    As the authors and MMDetection compute it: divided by the unbiased standard deviation plus eps.
    """

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the standardized weight."""
        dims = tuple(range(1, weight.dim()))
        centred = weight - weight.mean(dims, keepdim=True)
        return centred / (centred.std(dims, keepdim=True) + self.eps)


def use_weight_standardization(model: nn.Module) -> nn.Module:
    """Parametrize the weight of every convolution; vectors of length 1 have no variance and are skipped."""
    for module in list(model.modules()):
        if isinstance(module, nn.Conv2d) and module.weight[0].numel() > 1:
            parametrize.register_parametrization(module, "weight", Standardize())
    return model


def torchvision_weights(name: str) -> dict[str, torch.Tensor]:
    """Return torchvision's ImageNet weights from its cache; downloaded only with `--download`."""
    from torchvision.models import get_model_weights

    weights = get_model_weights(name).IMAGENET1K_V1
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    if not file.is_file() and os.environ.get(DOWNLOAD) != "1":
        raise UserError(
            f"torchvision's weights of {name} are not at {file}: run with --download, or put {weights.url} there"
        )
    try:
        state: dict[str, torch.Tensor] = weights.get_state_dict(
            progress=False, check_hash=True, weights_only=True
        )
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"cannot download {weights.url} ({reason}): put the file at {file}") from error
    return state


def load_weights(model: nn.Module, path: Path) -> nn.Module:
    """Load a state dict (safetensors, or torch's format without pickled code); a head of another size is skipped.

    Half-precision files are converted. Any other mismatch is an error.
    """
    if not path.is_file():
        raise UserError(f"the weights file {path} does not exist: put it there")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state: Any = load_file(str(path))
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise UserError(f"{path} is not a plain state dict: save one with torch.save") from error
        state = state.get("state_dict", state) if isinstance(state, dict) else state
    expected = model.state_dict()
    head = {name for name in ("fc.weight", "fc.bias") if name in expected}
    wrong = [
        name
        for name in expected
        if name not in head
        and not name.endswith("num_batches_tracked")
        and (name not in state or state[name].shape != expected[name].shape)
    ]
    if wrong:
        raise UserError(
            f"{path} does not fit the network: {', '.join(wrong[:3])} missing or of another shape"
        )
    matching = {
        key: value.to(expected[key].dtype)
        for key, value in state.items()
        if key in expected and value.shape == expected[key].shape
    }
    model.load_state_dict(matching, strict=False)
    return model
