"""Lightning: automatic and manual optimization, clipping before GC, steps with a closure."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_examples import drift_in_example
from engine_truth import OPTIMIZERS, OVERRIDES, batches, difference, loss_of, model, reference

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # the framework's own


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, net: torch.nn.Module, optimizer: str, automatic: bool) -> None:
        super().__init__()
        self.net, self.name, self.automatic_optimization = net, optimizer, automatic

    def training_step(self, batch: Any, index: int) -> Any:
        x, y = batch[0][0], batch[1][0]
        loss = loss_of(self.net, x, y)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        return OPTIMIZERS[self.name](self.net.parameters())


@pytest.mark.parametrize("automatic", [True, False], ids=["automatic", "manual"])
@pytest.mark.parametrize(
    ("name", "at"), [("sgd", "gradient"), ("adamw", "update"), ("sgd_foreach", "update")]
)
def test_weights_are_those_by_hand(name: str, at: str, automatic: bool, verified: Any) -> None:
    from gradcent.integrations.lightning import CentralizeCallback

    start = model()
    module = Module(copy.deepcopy(start), name, automatic).double()
    overrides = {f"net.{key}": value for key, value in OVERRIDES.items()}
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5 if automatic else None,
        callbacks=[CentralizeCallback(at=at, overrides=overrides)],
    )
    data = torch.utils.data.DataLoader(list(batches()), batch_size=1, shuffle=False)
    trainer.fit(module, data)
    assert trainer.global_step == 20
    found = difference(dict(module.net.named_parameters()), reference(start, name, at, clip=0.5))
    kind = "automatic" if automatic else "manual"
    verified("Lightning", "lightning", f"{name}, at the {at}, {kind} optimization, clipped", found, 1e-9)


class Two(Module):
    """Two optimizers, one of which trains nothing to centralize."""

    def configure_optimizers(self) -> Any:
        norm = torch.optim.SGD(self.net.norm.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05)
        rest = [each for name, each in self.net.named_parameters() if not name.startswith("norm")]
        return [OPTIMIZERS[self.name](rest), norm]

    def training_step(self, batch: Any, index: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss_of(self.net, batch[0][0], batch[1][0]))
        for optimizer in self.optimizers():
            optimizer.step()


def test_several_optimizers(verified: Any, caplog: pytest.LogCaptureFixture) -> None:
    from gradcent.integrations.lightning import CentralizeCallback

    start = model()
    module = Two(copy.deepcopy(start), "sgd", automatic=False).double()
    overrides = {f"net.{key}": value for key, value in OVERRIDES.items()}
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[CentralizeCallback(overrides=overrides)],
    )
    with caplog.at_level("INFO", logger="gradcent"):
        trainer.fit(module, torch.utils.data.DataLoader(list(batches()), batch_size=1, shuffle=False))
    said = [record.getMessage() for record in caplog.records if record.name == "gradcent"]
    assert len(said) == 2
    assert "nothing to centralize in optimizer 1 (SGD)" in said[1]
    found = difference(dict(module.net.named_parameters()), reference(start, "sgd", "gradient"))
    what = "two optimizers, manual optimization, one of them with nothing to centralize"
    verified("Lightning", "lightning", what, found, 1e-12)


class Direct(Module):
    """Its forward takes the first part of a batch, as that of most modules."""

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Any:
        return loss_of(self.net, *batch)


def test_the_first_batch_is_the_example() -> None:
    """No override tells the layout of `columns`: the trace of a batch of the training data finds it."""
    from gradcent.integrations.lightning import CentralizeCallback

    start = model()
    module = Direct(copy.deepcopy(start), "sgd", automatic=True).double()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[CentralizeCallback()],
    )
    pairs = list(batches())
    data = torch.utils.data.TensorDataset(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=len(pairs[0][0]), shuffle=False))
    assert difference(dict(module.net.named_parameters()), reference(start, "sgd", "gradient")) < 1e-12


@pytest.mark.slow
def test_example(verified: Any) -> None:
    what = "examples/integrations/with_lightning.py: weight sums stay, float32"
    verified("Lightning", "lightning", what, drift_in_example("with_lightning"), 1e-6)


class FullBatch(lightning.LightningModule):  # type: ignore[misc]
    """One batch per epoch, so that the order of the samples does not matter; a schedule by epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 2))
        x = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
        self.data = torch.utils.data.TensorDataset(x, (x[:, 0] > x[:, 1]).long())

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.data, batch_size=48, shuffle=True)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.data, batch_size=20)

    def training_step(self, batch: Any, index: int) -> Any:
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return {"loss": loss}

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).double().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)},
        }


def test_an_experiment_from_a_module_trains_as_lightning_does(tmp_path: Any, verified: Any) -> None:
    """Weights and metric of the lab's loop without GC are those of a Lightning Trainer."""
    import dataclasses

    from gradcent_lab.adapters import from_lightning
    from gradcent_lab.data.random_streams import seed_everything
    from gradcent_lab.experiment.run_config import OFF, ON
    from gradcent_lab.run.scheduler import run_pairs

    experiment = from_lightning(FullBatch, monitor="val_acc", mode="max", epochs=5, clip=0.5)
    kept: list[Any] = []

    def closing(net: Any, folder: Any) -> None:
        kept.append({name: value.detach().clone() for name, value in net.module.named_parameters()})

    run = dataclasses.replace(experiment, closing=closing)
    records = run_pairs(run, [OFF, ON], [2], tmp_path)
    assert records[0].initial_weights == records[1].initial_weights
    seed_everything(2, "weights")
    module = experiment.model().module
    del module.log, module.log_dict  # Lightning's own again
    trainer = lightning.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
    )
    trainer.fit(module)
    found = difference(dict(module.named_parameters()), kept[0])
    verified("Lightning", "lightning", "compare: from_lightning trains as Trainer.fit, float32", found, 1e-5)
    assert records[0].last == pytest.approx(float(trainer.callback_metrics["val_acc"]), abs=1e-6)
    assert difference(dict(module.named_parameters()), kept[1]) > 1e-3  # with GC the weights differ


def test_a_tuned_learning_rate_reaches_the_schedule() -> None:
    """The lab changes the rate after configure_optimizers has made the scheduler."""
    from gradcent_lab.adapters.lightning import Steps, _optimizer, _schedule
    from gradcent_lab.adapters.parts import ModelGroups

    steps = Steps(FullBatch())
    optimizer = _optimizer(ModelGroups(steps, list(steps.parameters())))
    optimizer.param_groups[0]["lr"] = 0.2
    scheduler = _schedule(optimizer, 3)
    rates = []
    for _ in range(12):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.2] * 5 + [0.1] * 6 + [0.05])


def test_modules_that_the_lab_cannot_train_are_refused() -> None:
    from gradcent_lab.adapters import from_lightning
    from gradcent_lab.errors import UserError

    class Manual(FullBatch):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(UserError, match="manual optimization steps inside training_step"):
        from_lightning(Manual, monitor="val_acc", epochs=1)
    with pytest.raises(UserError, match="needs a LightningModule with training_step, not a Linear"):
        from_lightning(lambda: torch.nn.Linear(2, 2), monitor="val_acc", epochs=1)
    with pytest.raises(UserError, match='mode must be "max" or "min"'):
        from_lightning(FullBatch, monitor="val_acc", epochs=1, mode="best")  # type: ignore[arg-type]


def test_the_example_of_compare_runs(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from pathlib import Path

    from gradcent_lab.cli import main

    path = Path(__file__).resolve().parents[2] / "examples" / "compare_lightning.py"
    words = ["--seeds", "1", "--epochs", "1", "--out", str(tmp_path / "out")]
    assert main(["compare", f"{path}:experiment", *words]) == 0
    assert "One pair" in capsys.readouterr().out
