"""fastai: its own optimizers with coupled and decoupled decay, and a torch optimizer in its wrapper."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from engine_examples import drift_in_example
from engine_truth import OVERRIDES, batches, by_hand, difference, loss_of, model

pytestmark = pytest.mark.filterwarnings("ignore")
basics = pytest.importorskip("fastai.basics")


def fit(net: Any, opt_func: Any, at: str = "gradient") -> None:
    from gradcent.integrations.fastai import CentralizeCallback

    # fastai casts batches to float32, so the model is float32 too
    steps = list(batches(dtype=torch.float32))
    loader = basics.DataLoader(steps, bs=None, shuffle=False)
    learn = basics.Learner(
        basics.DataLoaders(loader, loader, device="cpu"),
        net,
        loss_func=lambda out, y: ((out - y) ** 2).mean(),
        opt_func=opt_func,
        lr=0.05,
        wd=0.05,
        wd_bn_bias=True,
        train_bn=True,
        cbs=[CentralizeCallback(overrides=OVERRIDES, at=at)],
    )
    with learn.no_logging():
        learn.fit(1)


def truth(start: Any, coupled: bool) -> dict[str, torch.Tensor]:
    """SGD with momentum as fastai has it: the decayed gradient (or shrunk weight), then the momentum step."""
    net = copy.deepcopy(start)
    plain = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05 if coupled else 0.0)
    for x, y in batches(dtype=torch.float32):
        plain.zero_grad()
        loss_of(net, x, y).backward()
        if not coupled:
            shrunk = [(each, each.detach() * (1 - 0.05 * 0.05)) for each in net.parameters()]
            with torch.no_grad():
                for each, value in shrunk:
                    each.copy_(value)
        by_hand(net, plain, "gradient", 0.05 if coupled else 0.0)
    return dict(net.named_parameters())


@pytest.mark.parametrize("coupled", [True, False], ids=["l2_reg", "weight_decay"])
def test_own_sgd(coupled: bool, verified: Any) -> None:
    start = model(dtype=torch.float32)
    net = copy.deepcopy(start)
    fit(net, partial(basics.SGD, mom=0.9, decouple_wd=not coupled))
    found = difference(dict(net.named_parameters()), truth(start, coupled))
    kind = "l2_reg, P(g + λw)" if coupled else "decoupled decay"
    verified("fastai", "fastai", f"its own SGD, {kind}", found, 1e-5)


def test_wrapped_torch_optimizer(verified: Any) -> None:
    start = model(dtype=torch.float32)
    net = copy.deepcopy(start)
    before = net.fc.weight.detach().double().mean(1)
    fit(net, partial(basics.OptimWrapper, opt=torch.optim.AdamW), at="update")
    assert (net.fc.weight - start.fc.weight).abs().max() > 0.01
    found = (net.fc.weight.detach().double().mean(1) - before).abs().max().item()
    verified("fastai", "fastai", "OptimWrapper(AdamW), at the update: weight sums stay", found, 1e-6)


def test_own_optimizers_cannot_project_the_update() -> None:
    with pytest.raises(ValueError, match="OptimWrapper"):
        fit(model(dtype=torch.float32), basics.SGD, at="update")


@pytest.mark.slow
def test_example(verified: Any) -> None:
    what = "examples/integrations/with_fastai.py: weight sums stay, float32"
    verified("fastai", "fastai", what, drift_in_example("with_fastai"), 1e-6)
