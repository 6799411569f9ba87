"""`from_trainer` with the real transformers: the lab trains to the Trainer's own weights and metrics."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from gradcent_lab.adapters import from_trainer
from gradcent_lab.data.random_streams import seed_everything
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.run.scheduler import run_pairs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")
N = 24


class Tokens(Dataset):
    """Random sequences whose label is whether the first token is in the upper half of the vocabulary."""

    def __init__(self, seed):
        self.ids = torch.randint(1, 40, (N, 6), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return N

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": (ids[0] > 20).long()}


def make_model():
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=8,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=2,
        )
    )


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(1) == prediction.label_ids))}


def trainer(folder, model=None, **changes):
    options = {
        "output_dir": str(folder),
        "num_train_epochs": 4,
        "per_device_train_batch_size": N,
        "per_device_eval_batch_size": 7,
        "learning_rate": 5e-3,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 1,
        "metric_for_best_model": "accuracy",
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    } | changes
    given = {"model_init": make_model} if model is None else {"model": model}
    return transformers.Trainer(
        args=transformers.TrainingArguments(**options),
        train_dataset=Tokens(0),
        eval_dataset=Tokens(1),
        compute_metrics=accuracy,
        **given,
    )


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_the_lab_trains_to_the_weights_of_the_trainer(tmp_path):
    """One batch per epoch, so that the order of samples does not matter; groups, clipping and schedule do."""
    experiment = from_trainer(lambda: trainer(tmp_path), name="bert")
    assert (experiment.epochs, experiment.batch_size, experiment.clip) == (4, N, 0.5)
    assert (experiment.metric_name, experiment.higher_is_better) == ("accuracy", True)
    kept = []
    run = dataclasses.replace(experiment, closing=lambda model, folder: kept.append(weights(model)))
    (record,) = run_pairs(run, [OFF], [3], tmp_path / "runs")

    seed_everything(3, "weights")
    model = experiment.model()
    start = weights(model)
    reference = trainer(tmp_path, model)
    reference.train()
    expected = weights(reference.model)
    moved = max(float((expected[name] - start[name]).abs().max()) for name in start)
    apart = max(float((expected[name] - kept[0][name]).abs().max()) for name in start)
    assert moved > 1e-3
    assert apart < 1e-5 + 1e-3 * moved, (apart, moved)
    found = reference.evaluate()
    assert record.last == pytest.approx(found["eval_accuracy"])
    assert record.curves[-1]["eval_loss"] == pytest.approx(found["eval_loss"], rel=1e-3)


def test_seeds_differ_and_arms_are_pairs(tmp_path):
    """A Trainer seeds the generators with args.seed when it is made; the lab's seeds must still differ."""
    records = run_pairs(from_trainer(lambda: trainer(tmp_path), name="bert"), [OFF, ON], [0, 1], tmp_path)
    starts = {(record.seed, record.arm): record.initial_weights for record in records}
    assert starts[0, "off"] == starts[0, "on"] != starts[1, "off"] == starts[1, "on"]
    ends = {(record.seed, record.arm): record.curves[-1]["train_loss"] for record in records}
    assert ends[0, "off"] != ends[0, "on"]


def test_without_compute_metrics_the_loss_is_the_metric(tmp_path):
    def build():
        made = trainer(tmp_path, make_model(), metric_for_best_model=None)
        made.compute_metrics = None
        return made

    experiment = dataclasses.replace(from_trainer(build, name="bert"), epochs=1)
    assert (experiment.metric_name, experiment.higher_is_better) == ("loss", False)
    (record,) = run_pairs(experiment, [ON], [0], tmp_path / "runs")
    assert record.last == record.curves[-1]["eval_loss"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gradient_accumulation_steps": 2},
            "gradient_accumulation_steps: multiply per_device_train_batch_size",
        ),
        ({"max_steps": 5}, "max_steps: set num_train_epochs instead"),
        ({"num_train_epochs": 1.5}, "num_train_epochs=1.5: give a whole number"),
        ({"bf16": True}, "does not follow TrainingArguments.bf16"),
    ],
)
def test_what_the_lab_does_not_follow_is_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        from_trainer(lambda: trainer(tmp_path, **changes))


def test_wrong_trainers_are_refused(tmp_path):
    with pytest.raises(UserError, match="needs a function that returns a Trainer, not a BertFor"):
        from_trainer(make_model)
    shared = make_model()
    with pytest.raises(UserError, match="same object every time"):
        from_trainer(lambda: trainer(tmp_path, shared))

    def with_optimizer():
        made = trainer(tmp_path)
        made.optimizer = torch.optim.SGD(made.model.parameters(), lr=0.1)
        return made

    with pytest.raises(UserError, match="belongs to one model"):
        from_trainer(with_optimizer)
    with pytest.raises(UserError, match="compute_metrics returned accuracy, not 'f1'"):
        run_pairs(
            from_trainer(lambda: trainer(tmp_path), metric_name="f1", name="bert"), [OFF], [0], tmp_path
        )
    assert Path(tmp_path).exists()
