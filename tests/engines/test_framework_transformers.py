"""Hugging Face Trainer with a real, tiny GPT-2 (Conv1D weights) from a config; Accelerate in one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_truth import OPTIMIZERS, OVERRIDES, batches, difference, loss_of, model, reference

import gradcent
import gradcent.integrations

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the framework's own


def tiny() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=31,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return transformers.GPT2LMHeadModel(config)


def texts() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 31, (24, 12), generator=generator)
    return [{"input_ids": each, "labels": each} for each in ids]


def arguments(folder: Path, **options: Any) -> Any:
    return transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=12,
        learning_rate=1.0 if options["optim"] == "sgd" else 5e-3,
        weight_decay=0.1,
        max_grad_norm=0.5,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **options,
    )


def by_hand(net: Any, decay: float = 0.0) -> Any:
    """GC between clipping and the step, written out: GPT-2's Conv1D weights are (in, out), so dim 0."""

    def hook(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        decayed = {
            id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]
        }
        for name, each in net.named_parameters():
            if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                strength = decay if id(each) in decayed else 0.0
                each.grad -= (each.grad + strength * each.detach()).mean(0, keepdim=True)

    return hook


def truth(folder: Path, decay: float = 0.0, **options: Any) -> Any:
    net = tiny()

    class Plain(transformers.Trainer):  # type: ignore[misc]
        def create_optimizer(self, *args: Any) -> Any:
            made = super().create_optimizer(*args)
            made.register_step_pre_hook(by_hand(net, decay))
            return made

    Plain(net, arguments(folder, **options), train_dataset=texts()).train()
    return net


@pytest.mark.parametrize("optim", ["adamw_torch", "sgd", "adamw_torch_fused"])
@pytest.mark.parametrize("way", ["callback", "class"])
def test_trainer(tmp_path: Path, way: str, optim: str, verified: Any) -> None:
    """The same weights as Trainer with GC written out, clipping and decay groups included."""
    from gradcent.integrations.transformers import CentralizeCallback, optimizer_cls_and_kwargs

    net, args = tiny(), arguments(tmp_path, optim=optim)
    if way == "callback":
        trainer = transformers.Trainer(net, args, train_dataset=texts(), callbacks=[CentralizeCallback()])
    else:
        chosen = optimizer_cls_and_kwargs(net, args)
        trainer = transformers.Trainer(net, args, train_dataset=texts(), optimizer_cls_and_kwargs=chosen)
    trainer.train()
    attachment = gradcent.attached(gradcent.integrations.innermost(trainer.optimizer))
    assert attachment is not None
    assert attachment.plan.totals()["centralized_tensors"] == 8
    found = difference(
        dict(net.named_parameters()),
        dict(truth(tmp_path, 0.1 if optim == "sgd" else 0.0, optim=optim).named_parameters()),
    )
    verified(
        "Hugging Face Trainer",
        "transformers",
        f"GPT-2 with Conv1D, optim={optim}, by {way}, clipped",
        found,
        2e-4,
    )


def test_training_twice_keeps_the_optimizer_and_its_options(tmp_path: Path) -> None:
    """Trainer keeps its optimizer: the callback comes to one that is attached already."""
    from gradcent.integrations.transformers import CentralizeCallback

    net = tiny()
    callback = CentralizeCallback(at="update", layers="linear")
    trainer = transformers.Trainer(
        net, arguments(tmp_path, optim="adamw_torch"), train_dataset=texts(), callbacks=[callback]
    )
    trainer.train()
    trainer.train()
    callback.options["at"] = "gradient"
    with pytest.raises(ValueError, match=r"other options, so those given here \(at\)"):
        trainer.train()


@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_llama(tmp_path: Path, optim: str, verified: Any) -> None:
    """Linear layers throughout, tied nothing: every projection's rows, the head's among them."""
    from gradcent.integrations.transformers import CentralizeCallback

    def llama() -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
        config = transformers.LlamaConfig(
            vocab_size=31, num_hidden_layers=2, max_position_embeddings=16, **sizes
        )
        return transformers.LlamaForCausalLM(config)

    decay = 0.1 if optim == "sgd" else 0.0

    class Plain(transformers.Trainer):  # type: ignore[misc]
        def create_optimizer(self, *args: Any) -> Any:
            made = super().create_optimizer(*args)
            made.register_step_pre_hook(lambda *_: rows_by_hand(truth_net))
            return made

    def rows_by_hand(net: Any) -> None:
        for name, each in net.named_parameters():
            if name.endswith(("proj.weight", "lm_head.weight")):
                each.grad -= (each.grad + decay * each.detach()).mean(1, keepdim=True)

    args = arguments(tmp_path, optim=optim)
    net, truth_net = llama(), llama()
    trainer = transformers.Trainer(net, args, train_dataset=texts(), callbacks=[CentralizeCallback()])
    trainer.train()
    Plain(truth_net, args, train_dataset=texts()).train()
    attachment = gradcent.attached(gradcent.integrations.innermost(trainer.optimizer))
    assert attachment is not None
    assert attachment.plan.totals()["centralized_tensors"] == 15
    found = difference(dict(net.named_parameters()), dict(truth_net.named_parameters()))
    verified(
        "Hugging Face Trainer", "transformers", f"Llama, optim={optim}, by callback, clipped", found, 2e-4
    )


def test_the_plan_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from gradcent.integrations.transformers import CentralizeCallback

    with caplog.at_level("INFO", logger="gradcent"):
        trainer = transformers.Trainer(
            tiny(), arguments(tmp_path, optim="sgd"), train_dataset=texts(), callbacks=[CentralizeCallback()]
        )
        trainer.train()
    said = [record.getMessage() for record in caplog.records if record.name == "gradcent"]
    assert len(said) == 1
    assert "centralized: 8 of 28 tensors" in said[0]


def test_without_it_the_weights_differ(tmp_path: Path) -> None:
    """What the comparison above can see."""
    net = tiny()
    transformers.Trainer(net, arguments(tmp_path, optim="sgd"), train_dataset=texts()).train()
    found = difference(
        dict(net.named_parameters()), dict(truth(tmp_path, 0.1, optim="sgd").named_parameters())
    )
    assert found > 1e-3


@pytest.mark.parametrize("order", ["attach, prepare", "prepare, attach"])
def test_accelerate(order: str, verified: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    start = model()
    net = copy.deepcopy(start)
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer: Any = OPTIMIZERS["sgd"](net.parameters())
    if order == "attach, prepare":
        gradcent.attach(optimizer, net, overrides=OVERRIDES)
        net, optimizer = accelerator.prepare(net, optimizer)
    else:
        net, optimizer = accelerator.prepare(net, optimizer)
        with pytest.raises(TypeError, match=r"optimizer\.optimizer"):
            gradcent.attach(optimizer, net, overrides=OVERRIDES)
        gradcent.attach(optimizer.optimizer, net, overrides=OVERRIDES)
    for x, y in batches():
        optimizer.zero_grad()
        accelerator.backward(loss_of(net, x, y))
        accelerator.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    found = difference(dict(net.named_parameters()), reference(start, "sgd", "gradient", clip=0.5))
    verified("Accelerate", "accelerate", f"{order}; clipping; one process", found, 1e-12)
