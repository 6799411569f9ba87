"""Hugging Face Trainer with GC: a callback. GPT-2's Conv1D weights are stored as (in, out); the plan knows."""

from __future__ import annotations

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import gradcent
from gradcent.integrations.transformers import CentralizeCallback


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    ids = torch.randint(0, 31, (32, 12))
    texts = [{"input_ids": each, "labels": each} for each in ids]
    before = model.transformer.h[0].mlp.c_fc.weight.detach().mean(0)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            num_train_epochs=3,
            learning_rate=5e-3,
            weight_decay=0.1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model, args, train_dataset=texts, callbacks=[CentralizeCallback(at="update")]
        )  # the one argument
        trainer.train()
    drift = (model.transformer.h[0].mlp.c_fc.weight.detach().mean(0) - before).abs().max().item()
    print(gradcent.explain(model).summary())
    print(f"largest drift of a weight vector's mean: {drift:.1e}")


if __name__ == "__main__":
    main()
