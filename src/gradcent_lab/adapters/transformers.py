"""`from_trainer`: an Experiment from a Hugging Face `Trainer`.

    def my_trainer() -> Trainer:
        return Trainer(model_init=make_model, args=TrainingArguments(...), train_dataset=..., eval_dataset=...)

    experiment = from_trainer(my_trainer)

Its model, collation, `compute_loss`, `create_optimizer`, `create_scheduler`, `max_grad_norm`, `prediction_step` and
`compute_metrics` are used, those of subclasses too. Callbacks are not called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gradcent_lab.adapters.parts import FromUser, ModelGroups, Rows
from gradcent_lab.data.batches import Batch
from gradcent_lab.data.random_streams import cpu_states, seeded, set_cpu_states
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import described
from gradcent_lab.experiment.spec import Experiment

LOSS = "loss"


def from_trainer(
    build: Callable[[], Any],
    *,
    name: str | None = None,
    metric_name: str | None = None,
    higher_is_better: bool | None = None,
) -> Experiment:
    """Return the Experiment of the Trainer that `build` makes.

    Args:
        build: a function without arguments that returns a new `transformers.Trainer`. It makes the model inside, or
            passes `model_init`: every run needs a fresh one.
        name: names the folder of the runs; the function's name by default.
        metric_name: a key of what `compute_metrics` returns; by default `args.metric_for_best_model`, else the loss.
        higher_is_better: by default `args.greater_is_better`, else whether the metric is not a loss.
    """
    with seeded(0, "adapter"):
        trainer = build()
    _check(trainer, build)
    args = trainer.args
    metric = (metric_name or args.metric_for_best_model or LOSS).removeprefix("eval_")
    if metric != LOSS and trainer.compute_metrics is None:
        raise UserError(f"the Trainer has no compute_metrics, which would return {metric!r}")
    better = args.greater_is_better if higher_is_better is None else higher_is_better
    parts = _Parts(build, trainer, metric)
    with seeded(0, "adapter"):
        train = Rows(trainer.get_train_dataloader(), parts.split, "train_dataset")
        evaluation = Rows(trainer.get_eval_dataloader(), parts.split, "eval_dataset")
    return Experiment(
        name=name or str(getattr(build, "__name__", "trainer")),
        model=FromUser(build, parts.make_model),
        train_data=train,
        eval_data=evaluation,
        forward=parts.forward,
        loss=lambda output, targets: output["loss"],
        metric=lambda output, targets: output["loss"].detach().reshape(1),
        evaluate=parts.evaluate,
        metric_name=metric,
        higher_is_better=not metric.endswith(LOSS) if better is None else bool(better),
        parameters=parts.parameters,
        optimizer=parts.optimizer,
        schedule=parts.schedule,
        clip=args.max_grad_norm or None,
        epochs=int(args.num_train_epochs),
        batch_size=args.per_device_train_batch_size,
        eval_batch_size=args.per_device_eval_batch_size,
        drop_last=args.dataloader_drop_last,
    )


def _check(trainer: Any, build: Callable[[], Any]) -> None:
    """Refuse what the lab's loop would ignore."""
    for attribute in ("args", "compute_loss", "create_optimizer", "create_scheduler", "prediction_step"):
        if not hasattr(trainer, attribute):
            raise UserError(f"from_trainer needs a function that returns a Trainer, not {described(trainer)}")
    args = trainer.args
    refused = {
        "gradient_accumulation_steps": args.gradient_accumulation_steps != 1,
        "max_steps": args.max_steps > 0,
        "fp16": bool(args.fp16),
        "bf16": bool(args.bf16),
        "deepspeed": bool(args.deepspeed),
        "fsdp": bool(args.fsdp),
        "batch_eval_metrics": bool(args.batch_eval_metrics),
    }
    instead = {
        "gradient_accumulation_steps": "multiply per_device_train_batch_size instead",
        "max_steps": "set num_train_epochs instead",
    }
    for option, given in refused.items():
        if given:
            advice = instead.get(option, "leave it out")
            raise UserError(f"the lab's training loop does not follow TrainingArguments.{option}: {advice}")
    if args.num_train_epochs != int(args.num_train_epochs) or args.num_train_epochs < 1:
        raise UserError(f"num_train_epochs={args.num_train_epochs:g}: give a whole number of epochs")
    if trainer.optimizer is not None or trainer.lr_scheduler is not None:
        raise UserError(
            "Trainer(optimizers=…) belongs to one model, but every run has its own: pass optimizer_cls_and_kwargs= or "
            "override create_optimizer"
        )
    if trainer.model_init is None:
        with seeded(0, "adapter"):
            again = build()
        if again.model is trainer.model:
            raise UserError(
                "the Trainer's model is the same object every time, so a second run would start from trained weights: "
                "make the model inside the function, or pass model_init"
            )


class _Parts:
    """The functions of the Experiment, over one Trainer that lends its methods."""

    def __init__(self, build: Callable[[], Any], trainer: Any, metric: str) -> None:
        self.build, self.trainer, self.metric = build, trainer, metric
        self.labels: tuple[str, ...] = tuple(trainer.label_names)

    def make_model(self) -> nn.Module:
        """Build a fresh model from the random state that the lab has seeded."""
        if self.trainer.model_init is not None:
            # not through a new Trainer, which seeds the generators with args.seed: every seed would start equal
            model: nn.Module = self.trainer.call_model_init()
            return model
        states = cpu_states()
        built = self.build().model
        set_cpu_states(states)
        assert isinstance(built, nn.Module)
        return built

    def split(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Split a collated batch into inputs and labels."""
        inputs = {key: value for key, value in batch.items() if key not in self.labels}
        labels = {key: value for key, value in batch.items() if key in self.labels}
        return inputs, next(iter(labels.values())) if len(labels) == 1 else labels

    def join(self, inputs: Mapping[str, Any], targets: Any) -> dict[str, Any]:
        """Return the batch as the Trainer has it."""
        if isinstance(targets, Mapping):
            return {**inputs, **targets}
        return {**inputs, self.labels[0]: targets}

    def forward(self, model: nn.Module, inputs: Any, targets: Any) -> dict[str, Any]:
        """Compute the loss as the Trainer does."""
        loss, outputs = self.trainer.compute_loss(model, self.join(inputs, targets), return_outputs=True)
        return {"loss": loss, "outputs": outputs}

    def parameters(self, model: nn.Module) -> ModelGroups:
        """Return the Trainer's param groups, for an optimizer that replaces the Trainer's."""
        decayed = set(self.trainer.get_decay_parameter_names(model))
        groups: list[dict[str, Any]] = [
            {"params": [], "weight_decay": decay} for decay in (self.trainer.args.weight_decay, 0.0)
        ]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                groups[0 if name in decayed else 1]["params"].append(parameter)
        return ModelGroups(model, [group for group in groups if group["params"]])

    def optimizer(self, groups: ModelGroups) -> torch.optim.Optimizer:
        """Make the Trainer's optimizer for a model."""
        self.trainer.model, self.trainer.optimizer = groups.model, None
        optimizer: torch.optim.Optimizer = self.trainer.create_optimizer()
        self.trainer.optimizer = None
        return optimizer

    def schedule(self, optimizer: torch.optim.Optimizer, steps: int) -> Any:
        """Make the Trainer's schedule over all its epochs."""
        self.trainer.lr_scheduler = None
        total = steps * int(self.trainer.args.num_train_epochs)
        scheduler = self.trainer.create_scheduler(total, optimizer)
        self.trainer.lr_scheduler = None
        return scheduler

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], accelerator: Any) -> dict[str, float]:
        """Return the mean loss and, if the metric is another, what `compute_metrics` returns."""
        from accelerate.utils import gather_object, send_to_device
        from transformers.trainer_pt_utils import nested_numpify

        only_loss = self.metric == LOSS
        rows: list[tuple[float, int, Any, Any]] = []
        for batch in batches:
            inputs = send_to_device(self.join(batch.inputs, batch.targets), accelerator.device)
            loss, logits, labels = self.trainer.prediction_step(model, inputs, only_loss)
            if not only_loss and self.trainer.preprocess_logits_for_metrics is not None:
                logits = self.trainer.preprocess_logits_for_metrics(logits, labels)
            if batch.count:
                value = float("nan") if loss is None else float(loss)
                kept = (None, None) if only_loss else (nested_numpify(logits), nested_numpify(labels))
                rows.append((value, batch.count, *kept))
        if accelerator.num_processes > 1:
            rows = gather_object(rows)
        total = sum(count for _, count, _, _ in rows)
        named = {"eval_loss": sum(loss * count for loss, count, _, _ in rows) / total}
        if only_loss:
            return {LOSS: named["eval_loss"], **named}
        return named | self._metrics(rows)

    def _metrics(self, rows: list[tuple[float, int, Any, Any]]) -> dict[str, float]:
        from transformers import EvalPrediction
        from transformers.trainer_pt_utils import nested_concat

        predictions, labels = rows[0][2], rows[0][3]
        for _, _, logits, targets in rows[1:]:
            predictions = nested_concat(predictions, logits)
            labels = nested_concat(labels, targets)
        found = self.trainer.compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels))
        named = {str(key).removeprefix("eval_"): float(value) for key, value in found.items()}
        if self.metric not in named:
            raise UserError(f"compute_metrics returned {', '.join(named) or 'nothing'}, not {self.metric!r}")
        return named
