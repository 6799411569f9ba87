"""The kind of weight decay of other packages' optimizers, compared with what their steps do.

Coupled decay adds λw to the gradient: a step with λ on the gradient g − λw equals a step without decay on g.
Decoupled decay shrinks the weight: the first step with λ differs from the one without by a multiple of w.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradcent.decay import decay_kind
from optimizer_cases import eager

BITSANDBYTES = [
    f"bitsandbytes.optim:{name}"
    for family in ("Adam", "AdamW", "Lion", "AdEMAMix", "Adagrad", "LARS", "RMSprop", "SGD")
    for name in (family, f"{family}8bit", f"{family}32bit", f"Paged{family}", f"Paged{family}8bit")
    if name != "AdEMAMix32bit"  # bitsandbytes 0.50 fails in its CPU step
]
CLASSES = [
    *BITSANDBYTES,
    "came_pytorch:CAME",
    "heavyball:AdamW",
    "heavyball:SGD",
    "heavyball:LaProp",
    "lion_pytorch:Lion",
    "muon:SingleDeviceMuon",
    "muon:SingleDeviceMuonWithAuxAdam",
    "prodigyopt:Prodigy",
    "prodigyopt:Prodigy coupled",
    "schedulefree:SGDScheduleFree",
    "timm.optim:AdamWLegacy",
    "timm.optim:Lion",
    "timm.optim:Muon",
    "timm.optim:NAdamLegacy",
    "timm.optim:NAdamW",
    "timm.optim:RAdamLegacy",
    "timm.optim:RMSpropTF",
    "timm.optim:SGDW",
    "torchao.optim:AdamW8bit",
    "torchao.optim:Adam8bit",
]
DECAY = 0.3
OPTIONS: dict[str, dict[str, Any]] = {
    "prodigyopt:Prodigy": {"lr": 1.0},
    "prodigyopt:Prodigy coupled": {"lr": 1.0, "decouple": False},
    "bitsandbytes.optim:SGD": {"momentum": 0.9},
    "bitsandbytes.optim:LARS": {"momentum": 0.9},
}


def start() -> Tensor:
    return torch.linspace(1, 3, 64 * 64).reshape(64, 64).sin() + 2.0


def make(path: str, decay: float) -> tuple[nn.Parameter, Any]:
    module, name = path.split(" ")[0].split(":")
    pytest.importorskip(module.split(".")[0])
    cls = getattr(importlib.import_module(module), name, None)
    if cls is None:
        pytest.skip(f"this release has no {path}")
    weight = nn.Parameter(start())
    family = next((key for key in OPTIONS if path.replace("Paged", "").startswith(key)), "")
    options = {"lr": 0.01, **OPTIONS.get(path, OPTIONS.get(family, {}))}
    if name.endswith("AuxAdam"):
        return weight, cls([{"params": [weight], "use_muon": True, "weight_decay": decay}])
    optimizer = cls([weight], weight_decay=decay, **options)
    if hasattr(optimizer, "train"):
        optimizer.train()
    return weight, optimizer


def trained(path: str, decay: float, steps: int, *, less_decay: bool = False) -> Tensor:
    weight, optimizer = make(path, decay)
    wave = torch.linspace(-1, 2, 64 * 64).reshape(64, 64).sin()
    gradient = wave + 0.5 * wave.sign()  # no element near 0, where adaptive steps amplify rounding
    for _ in range(steps):
        weight.grad = gradient - decay * weight.detach() if less_decay else gradient.clone()
        with eager():
            optimizer.step()
    return weight.detach().clone()


@pytest.mark.parametrize("path", CLASSES)
@pytest.mark.filterwarnings("ignore")
def test_the_kind_is_what_the_step_does(path: str, capfd: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, optimizer = make(path, DECAY)
        kind = decay_kind(optimizer, optimizer.param_groups[0])
        assert kind in ("coupled", "decoupled")
        rough = (
            2e-2 if "8bit" in path else 2e-3 if "muon" in path.lower() else 1e-4
        )  # quantized states; bfloat16
        if kind == "coupled":
            ends = trained(path, DECAY, 2, less_decay=True), trained(path, 0.0, 2)
            torch.testing.assert_close(*ends, rtol=rough, atol=rough * 0.1)
            assert not torch.allclose(trained(path, DECAY, 2), ends[1], rtol=0, atol=1e-5)
            return
        ratio = (trained(path, DECAY, 1) - trained(path, 0.0, 1)) / start()
        assert float(ratio.mean()) < 0
        torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=max(rough, 1e-2), atol=1e-6)


def test_heavyballs_nadam_mixes_both_forms_and_is_asked_for() -> None:
    heavyball = pytest.importorskip("heavyball")
    for decoupled, kind in ((False, "unknown"), (True, "decoupled")):
        optimizer = heavyball.NAdam(
            [nn.Parameter(start())], weight_decay=0.1, decoupled_weight_decay=decoupled
        )
        assert decay_kind(optimizer, optimizer.param_groups[0]) == kind
