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


@pytest.mark.slow
def test_example(verified: Any) -> None:
    what = "examples/integrations/with_lightning.py: weight sums stay, float32"
    verified("Lightning", "lightning", what, drift_in_example("with_lightning"), 1e-6)
