"""timm's registry: `create_optimizer_v2(model, opt="sgdgc")`."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_truth import OVERRIDES, batches, by_hand, difference, loss_of, model

import gradcent

timm_optim = pytest.importorskip("timm.optim")
ours = pytest.importorskip("gradcent.integrations.timm")


def train(net: torch.nn.Module, optimizer: Any) -> None:
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("name", "at", "decay"),
    [
        ("momentum", "gradient", 0.05),
        ("sgd", "gradient", 0.05),
        ("adamw", "update", 0.0),
        ("rmsprop", "gradient", 0.05),
    ],
)
def test_weights_are_those_by_hand(name: str, at: str, decay: float, verified: Any) -> None:
    start = model()
    net, truth = copy.deepcopy(start), copy.deepcopy(start)
    settings = {"lr": 0.01, "weight_decay": 0.05, "filter_bias_and_bn": False}
    optimizer = timm_optim.create_optimizer_v2(net, opt=f"{name}gc", at=at, overrides=OVERRIDES, **settings)
    assert gradcent.attached(optimizer) is not None
    train(net, optimizer)
    plain = timm_optim.create_optimizer_v2(truth, opt=name, **settings)
    assert gradcent.attached(plain) is None
    for x, y in batches():
        plain.zero_grad()
        loss_of(truth, x, y).backward()
        by_hand(truth, plain, at, decay)
    found = difference(dict(net.named_parameters()), dict(truth.named_parameters()))
    verified("timm", "timm", f'create_optimizer_v2(model, opt="{name}gc"), at the {at}', found, 1e-9)


def test_names_are_listed_beside_the_plain_ones() -> None:
    names = timm_optim.list_optimizers()
    assert {"sgdgc", "adamwgc", "lambgc"} <= set(names)
    assert "adahessiangc" not in names
    assert set(ours.register()) == set(ours.NAMES)  # registering twice changes nothing
    assert not [name for name in timm_optim.list_optimizers() if name.endswith("gcgc")]


def test_decay_groups_and_lookahead() -> None:
    """Lookahead around AdamW with timm's two decay groups, against the same optimizer given Φ(g) by hand."""
    start = model()
    net, truth = copy.deepcopy(start), copy.deepcopy(start)
    settings = {"lr": 0.01, "weight_decay": 0.05}
    optimizer = timm_optim.create_optimizer_v2(net, opt="lookahead_adamwgc", overrides=OVERRIDES, **settings)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.05]
    assert gradcent.attached(gradcent.integrations.innermost(optimizer)) is not None
    plain = timm_optim.create_optimizer_v2(truth, opt="lookahead_adamw", **settings)
    for _ in range(2):  # Lookahead moves its slow weights in the sixth step
        train(net, optimizer)
        for x, y in batches():
            plain.zero_grad()
            loss_of(truth, x, y).backward()
            by_hand(truth, plain, "gradient", 0.0)
    assert difference(dict(net.named_parameters()), dict(truth.named_parameters())) < 1e-9
    assert difference(dict(net.named_parameters()), dict(start.named_parameters())) > 1e-3


def test_a_list_of_parameters_is_refused() -> None:
    with pytest.raises(TypeError, match="needs the model"):
        timm_optim.create_optimizer_v2(model().parameters(), opt="sgdgc", lr=0.1)


def test_scripts_get_the_names(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, timm.optim, torch\n"
        "o = timm.optim.create_optimizer_v2(torch.nn.Linear(3, 2), opt=sys.argv[1], lr=0.1)\n"
        "print(o._gradcent)\n"
    )
    command = [sys.executable, "-m", "gradcent.integrations.timm", str(script), "sgdgc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "1 of 2 tensors" in done.stdout, done.stderr
