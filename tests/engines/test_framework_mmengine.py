"""MMEngine's registry: the optimizer wrapper built from a config, with clipping."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from engine_truth import OVERRIDES, batches, difference, loss_of, model, reference

pytestmark = pytest.mark.filterwarnings("ignore")
optim = pytest.importorskip("mmengine.optim")


@pytest.mark.parametrize("at", ["gradient", "update"])
def test_weights_are_those_by_hand(at: str, verified: Any) -> None:
    import gradcent.integrations.mmengine  # noqa: F401 (registers the constructor)

    start = model()
    net = copy.deepcopy(start)
    config = {
        "type": "OptimWrapper",
        "constructor": "CentralizedConstructor",
        "optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.05},
        "clip_grad": {"max_norm": 0.5},
        "paramwise_cfg": {"centralize": {"at": at, "overrides": OVERRIDES}},
    }
    wrapper = optim.build_optim_wrapper(net, config)
    for x, y in batches():
        wrapper.update_params(loss_of(net, x, y))
    found = difference(dict(net.named_parameters()), reference(start, "sgd", at, clip=0.5))
    verified(
        "MMEngine", "mmengine", f"CentralizedConstructor from a config, at the {at}, clipped", found, 1e-12
    )
