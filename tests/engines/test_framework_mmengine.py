"""MMEngine's registry: the optimizer wrapper built from a config, with clipping."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_examples import drift_in_example
from engine_truth import OVERRIDES, batches, difference, loss_of, model, reference

import gradcent

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


def test_the_hook_traces_the_first_batch(tmp_path: Path) -> None:
    """No override tells the layout of `columns`: the trace of a batch of the training data finds it."""
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    import gradcent.integrations.mmengine  # noqa: F401 (registers the hook)

    class Model(BaseModel):  # type: ignore[misc]
        def __init__(self, net: torch.nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any, y: Any, mode: str = "tensor") -> Any:
            return {"loss": loss_of(self.net, x, y)} if mode == "loss" else self.net(x)

    start = model()
    wrapped = Model(copy.deepcopy(start))
    pairs = list(batches())
    data = torch.utils.data.TensorDataset(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
    runner = Runner(
        model=wrapped,
        work_dir=str(tmp_path),
        train_dataloader=torch.utils.data.DataLoader(data, batch_size=len(pairs[0][0]), shuffle=False),
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={
            "optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.05},
            "clip_grad": {"max_norm": 0.5},
        },
        custom_hooks=[{"type": "CentralizeHook"}],
        default_hooks={"checkpoint": None, "logger": None},
        log_level="ERROR",
    )
    runner.train()
    assert (
        difference(dict(wrapped.net.named_parameters()), reference(start, "sgd", "gradient", clip=0.5))
        < 1e-12
    )


def test_the_lines_of_the_page() -> None:
    """What docs/integrations/mmengine.md tells users of MMDetection to write, read and built by MMEngine."""
    from mmengine.config import Config

    page = Path(__file__).resolve().parents[2] / "docs" / "integrations" / "mmengine.md"
    config = Config.fromstring(page.read_text().split("```")[1].strip() + "\n", ".py")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2))
    wrapper = optim.build_optim_wrapper(net, config.optim_wrapper)
    attachment = gradcent.attached(wrapper.optimizer)
    assert attachment is not None
    assert [entry.name for entry in attachment.plan.entries if entry.centralized] == ["0.weight"]
    assert wrapper.clip_grad_kwargs == {"max_norm": 35}


@pytest.mark.slow
def test_example(verified: Any) -> None:
    what = "examples/integrations/with_mmengine.py: weight sums stay, float32"
    verified("MMEngine", "mmengine", what, drift_in_example("with_mmengine"), 1e-6)
