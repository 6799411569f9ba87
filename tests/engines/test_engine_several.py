"""Several optimizers of one model: each gets its share, and none is passed over without a word."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcent
import gradcent.integrations


def parts() -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    net = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    groups = ([net[0].weight, *net[2].parameters()], net[1].parameters(), net[3].parameters())
    return net, [torch.optim.SGD(each, lr=0.1) for each in groups]


def test_each_says_its_totals_once(caplog: pytest.LogCaptureFixture) -> None:
    net, optimizers = parts()
    with caplog.at_level("INFO", logger="gradcent"):
        gradcent.integrations.attach_each(optimizers, net, layers="linear")
    said = [record.getMessage() for record in caplog.records]
    assert [gradcent.attached(each) is not None for each in optimizers] == [False, True, True]
    assert len(said) == 3
    assert "20 of 24 parameters" in said[0]
    assert "8 of 10 parameters" in said[1]
    assert said[2] == "gradcent: nothing to centralize in optimizer 0 (SGD)"


def test_nothing_anywhere_is_an_error() -> None:
    net, optimizers = parts()
    with pytest.raises(ValueError, match="nothing would be centralized"):
        gradcent.integrations.attach_each(optimizers, net, layers="conv")
    with pytest.raises(ValueError, match="nothing would be centralized"):
        gradcent.integrations.attach_each(optimizers[:1], net)


def test_a_container_is_refused() -> None:
    """torchtitan's: an optimizer whose groups hold every parameter, but not the decay of those inside."""

    class Container(torch.optim.Optimizer):
        def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
            self.optimizers = optimizers
            everything = [
                each for one in optimizers for group in one.param_groups for each in group["params"]
            ]
            super().__init__(everything, {})

    net, optimizers = parts()
    with pytest.raises(TypeError, match="attach_each"):
        gradcent.attach(Container(optimizers), net)


def test_a_model_with_a_part_called_module_is_not_a_wrapper() -> None:
    net = nn.ModuleDict({"module": nn.Linear(2, 2)})
    assert gradcent.integrations.unwrapped(net) is net
    assert gradcent.integrations.unwrapped(nn.DataParallel(net)) is net
