"""Trainers use their first batch as the example, where the class rules do not explain the model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradcent
from gradcent.integrations._first_batch import batch_of, with_example


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(6, 8)), nn.Linear(8, 2)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        logits = self.head(torch.relu(inputs @ self.weight))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": torch.rand(6), "labels": torch.tensor(index % 2)}


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_the_callback_of_trainer_traces_the_first_batch(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from gradcent.integrations.transformers import CentralizeCallback

    model = Own()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, report_to=[], use_cpu=True, save_strategy="no"
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Rows(), callbacks=[CentralizeCallback(layers="hidden")]
    )
    trainer.train()
    plan = gradcent.attached(trainer.optimizer.optimizer).plan
    assert {entry.name for entry in plan.entries if entry.layout} == {"head.weight"}
    assert plan.traced is not None
    assert next(entry.role for entry in plan.entries if entry.name == "weight") == "input"


@pytest.mark.parametrize("prepared", [False, True])
def test_accelerate_traces_the_first_batch(prepared: bool) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from gradcent.integrations.accelerate import attach

    model = Own()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    if prepared:
        objects = accelerate.Accelerator(cpu=True).prepare(model, optimizer, loader)
        model, optimizer, loader = objects
    attach(optimizer, model, loader, layers="input")
    inner = optimizer.optimizer if prepared else optimizer
    plan = gradcent.attached(inner).plan
    assert {entry.name: entry.layout for entry in plan.entries if entry.layout} == {
        "weight": gradcent.Layout.columns((6, 8))
    }
    before = model.weight.detach().sum(0)
    for batch in loader:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    assert (model.weight.detach().sum(0) - before).abs().max() < 1e-5


def test_a_batch_is_taken_only_where_it_is_needed() -> None:
    def refuse() -> Any:
        raise AssertionError("not needed")

    assert with_example(nn.Linear(6, 2), {"at": "update"}, refuse) == {"at": "update"}
    assert "example" in with_example(Own(), {}, lambda: {"inputs": torch.rand(2, 6), "other": 1})
    assert "example" in with_example(Own(), {}, lambda: [torch.rand(2, 6), torch.zeros(2)])
    assert with_example(Own(), {}, lambda: None) == {}
    assert with_example(Own(), {}, lambda: torch.rand(2, 5)) == {}  # does not fit: attach warns
    assert with_example(Own(), {"plan": 1}, refuse) == {"plan": 1}


def test_taking_a_batch_does_not_disturb_the_data() -> None:
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=True)
    torch.manual_seed(0)
    expected = [batch["labels"].tolist() for batch in loader]
    torch.manual_seed(0)
    assert batch_of(loader)["inputs"].shape == (2, 6)
    assert [batch["labels"].tolist() for batch in loader] == expected

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError("consumed")

    with warnings.catch_warnings():
        assert batch_of(torch.utils.data.DataLoader(Stream(), batch_size=2)) is None
