"""Roles (input layer or hidden layer) and levels, and `layers="hidden" | "input"`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradcent


def _roles(model: nn.Module, example: Any, **options: Any) -> dict[str, str | None]:
    plan = gradcent.explain(model, example=example, **options)
    return {entry.name: entry.role for entry in plan.entries if entry.layout is not None}


def test_normalizing_pooling_and_padding_the_input_does_not_make_a_layer_hidden() -> None:
    stem = [nn.BatchNorm2d(3), nn.ReLU(), nn.ZeroPad2d(1), nn.AvgPool2d(2), nn.Conv2d(3, 8, 3)]
    model = nn.Sequential(
        *stem, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.LazyLinear(2)
    )
    example = torch.randn(2, 3, 12, 12)
    model(example)
    assert _roles(model, example) == {"4.weight": "input", "7.weight": "hidden", "9.weight": "hidden"}


def test_every_input_of_a_model_has_an_input_layer_and_look_ups_are_learned() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.table = nn.Conv2d(3, 8, 2), nn.Linear(5, 8)
            self.words, self.read = nn.Embedding(10, 6), nn.Linear(6, 8)
            self.scores = nn.Linear(8, 3)
            self.skip = nn.Linear(8 + 5, 2)

        def forward(self, image: Tensor, table: Tensor, words: Tensor) -> Tensor:
            joined = self.image(image).mean((2, 3)) + self.table(table) + self.read(self.words(words)).mean(1)
            return self.scores(joined) + self.skip(torch.cat([joined, table], 1)).sum(1, keepdim=True)

    example = (torch.randn(2, 3, 4, 4), torch.randn(2, 5), torch.zeros(2, 7, dtype=torch.long))
    roles = _roles(Several(), example)
    assert roles == {
        "image.weight": "input",
        "table.weight": "input",
        "read.weight": "hidden",
        "scores.weight": "hidden",
        "skip.weight": "hidden",
    }


def test_recurrent_layers() -> None:
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        roles = _roles(kind(5, 4, num_layers=2), torch.randn(6, 2, 5))
        assert roles == {
            "weight_ih_l0": "input",
            "weight_hh_l0": "hidden",
            "weight_ih_l1": "hidden",
            "weight_hh_l1": "hidden",
        }


def test_patch_embeddings_and_contractions_with_constants() -> None:
    class Mel(nn.Module):
        """A fixed filter bank is preprocessing: the layer after it is the input layer."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bank", torch.rand(9, 6))
            self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first((x @ self.bank).log1p()))

    assert _roles(Mel(), torch.rand(3, 9)) == {"first.weight": "input", "second.weight": "hidden"}
    timm = pytest.importorskip("timm", reason="timm is not installed")
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32).to("meta")
    roles = _roles(vit, torch.randn(2, 3, 32, 32))
    assert [name for name, role in roles.items() if role == "input"] == ["patch_embed.proj.weight"]


def test_layers_select_by_role() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    batch = torch.randn(8, 6)
    for layers, expected in (("hidden", ["2.weight", "4.weight"]), ("input", ["0.weight"])):
        for make in ("attach", "drop-in", "gradients"):
            if make == "attach":
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                gradcent.attach(optimizer, model, layers=layers, example=batch)
                plan = gradcent.attached(optimizer).plan
                gradcent.detach(optimizer)
            elif make == "drop-in":
                optimizer = gradcent.optim.SGD(
                    model.parameters(), lr=0.1, model=model, layers=layers, example=batch
                )
                plan = gradcent.attached(optimizer).plan
                gradcent.detach(optimizer)
            else:
                plan = gradcent.explain(model, layers=layers, example=batch)
            assert [entry.name for entry in plan.entries if entry.layout] == expected
            others = {
                entry.reason for entry in plan.entries if not entry.layout and entry.name.endswith("weight")
            }
            article = "an" if layers == "input" else "a"
            assert others == {f'not {article} {layers} layer, and layers="{layers}"'}
    with pytest.raises(ValueError, match=r'layers="hidden" selects by a layer.s role.*example=batch'):
        gradcent.explain(model, layers="hidden")
    with pytest.raises(ValueError, match="example=batch"):
        gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, layers="input")


def test_only_the_selected_layers_are_centralized_in_a_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    batch = torch.rand(8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradcent.attach(optimizer, model, layers="hidden", example=batch)
    before = [layer.weight.detach().sum(1) for layer in (model[0], model[2])]
    model(batch).square().mean().backward()
    optimizer.step()
    after = [layer.weight.detach().sum(1) for layer in (model[0], model[2])]
    assert (after[0] - before[0]).abs().max() > 1e-4
    torch.testing.assert_close(after[1], before[1])


def test_a_layer_that_the_example_does_not_reach_has_no_role() -> None:
    model = nn.ModuleDict({"main": nn.Linear(6, 4), "aux": nn.Linear(6, 4)})
    run = {"example": torch.randn(2, 6), "example_forward": lambda m, x: m["main"](x)}
    assert _roles(model, **run) == {"main.weight": "input", "aux.weight": None}
    plan = gradcent.explain(model, layers="input", **run)
    assert "of unknown role" in plan.entries[2].reason


def test_a_layer_that_is_added_after_the_example_has_no_role() -> None:
    model, batch = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), torch.randn(2, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradcent.attach(optimizer, model, layers="hidden", example=batch)
    model.append(nn.Linear(4, 4))
    optimizer.add_param_group({"params": model[2].parameters()})
    plan = gradcent.attached(optimizer).plan
    assert plan.layout(model[1].weight) is not None
    assert "of unknown role" in plan.entry(model[2].weight).reason


def test_levels_that_theory_gives() -> None:
    torch.manual_seed(0)
    x = torch.randn(4096, 256, dtype=torch.float64)
    head = nn.Linear(256, 2, dtype=torch.float64)

    def level(*before: nn.Module) -> float:
        plan = gradcent.explain(nn.Sequential(*before, head), example=x)
        return next(entry.level for entry in plan.entries if entry.role)

    assert level(nn.LayerNorm(256, elementwise_affine=False)) < 1e-12
    # E[relu]² / E[relu²] = 1/π, plus the mean's own noise (1 - 1/π)/256
    assert level(nn.ReLU()) == pytest.approx(1 / math.pi + (1 - 1 / math.pi) / 256, abs=1e-3)
    assert level(nn.Tanh()) == pytest.approx(1 / 256, abs=1e-4)
    assert level() == pytest.approx(1 / 256, abs=1e-4)
    shifted = nn.LayerNorm(256, dtype=torch.float64)
    nn.init.constant_(shifted.bias, 0.5)  # the mean 0.5 beside the variance 1
    assert level(shifted) == pytest.approx(0.25 / 1.25, abs=1e-3)


def test_the_table_shows_role_level_and_who_decided() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    plain, traced = (str(gradcent.explain(model, **o)) for o in ({}, {"example": torch.ones(3, 6)}))
    assert "decided by" in plain
    assert "role" not in plain
    line = next(line for line in traced.splitlines() if line.startswith("0.weight"))
    assert line.split() == [
        "0.weight",
        "Linear",
        "5×6",
        "5",
        "6",
        "rule",
        "input",
        "100.0",
        "%",
        "centralized",
    ]
    rows = gradcent.explain(model, example=torch.ones(3, 6)).rows()
    assert rows[0]["role"] == "input"
    assert rows[0]["level"] == pytest.approx(1)
    assert "<th" in gradcent.explain(model, example=torch.ones(3, 6))._repr_html_()
    meta = gradcent.explain(model.to("meta"), example=torch.ones(3, 6))
    assert [entry.role for entry in meta.entries if entry.layout] == ["input", "hidden"]
    assert all(entry.level is None for entry in meta.entries)
