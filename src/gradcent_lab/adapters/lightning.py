"""`from_lightning`: an Experiment from a `LightningModule`.

    experiment = from_lightning(MyModule, monitor="val_acc", mode="max", epochs=10)

`training_step`, `validation_step`, `configure_optimizers` and the dataloaders of the module (or of a datamodule) are
used. What the module logs under `monitor` is the metric. Callbacks and options of a Lightning Trainer are not used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from gradcent_lab.adapters.parts import FromUser, ModelGroups, Rows
from gradcent_lab.data.batches import Batch
from gradcent_lab.data.random_streams import seeded
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import described
from gradcent_lab.experiment.spec import Experiment


def from_lightning(
    build: Callable[[], Any],
    *,
    monitor: str,
    epochs: int,
    mode: Literal["max", "min"] = "max",
    datamodule: Any = None,
    clip: float | None = None,
    name: str | None = None,
) -> Experiment:
    """Return the Experiment of the LightningModule that `build` makes.

    Args:
        build: a function without arguments (or the class) that returns a new `LightningModule`.
        monitor: the name under which `validation_step` logs the metric.
        epochs: as `max_epochs` of a Trainer.
        mode: "max" if a higher metric is better, "min" if a lower one is.
        datamodule: a `LightningDataModule`, if the module has no dataloaders.
        clip: as `gradient_clip_val` of a Trainer.
        name: names the folder of the runs; the name of `build` by default.
    """
    if mode not in ("max", "min"):
        raise UserError(f'mode must be "max" or "min", not {mode!r}')
    with seeded(0, "adapter"):
        module = build()
        for attribute in ("training_step", "validation_step", "configure_optimizers"):
            if not hasattr(module, attribute):
                raise UserError(
                    f"from_lightning needs a LightningModule with {attribute}, not {described(module)}"
                )
        if not module.automatic_optimization:
            raise UserError(
                "manual optimization steps inside training_step, where the lab cannot attach GC: use "
                "gradcent.integrations.lightning.CentralizeCallback in a script and `gradcent compare --command`"
            )
        source = module if datamodule is None else datamodule
        if datamodule is not None:
            datamodule.prepare_data()
            datamodule.setup("fit")
        train, evaluation = (_loader(source, kind) for kind in ("train_dataloader", "val_dataloader"))
    return Experiment(
        name=name or str(getattr(build, "__name__", "module")),
        model=FromUser(build, lambda: Steps(build())),
        train_data=Rows(train, _split, "train_dataloader()"),
        eval_data=Rows(evaluation, _split, "val_dataloader()"),
        forward=lambda model, inputs, targets: model(_join(inputs, targets)),
        loss=lambda output, targets: output,
        metric=lambda output, targets: output.detach().reshape(1),
        evaluate=_Evaluate(monitor),
        metric_name=monitor,
        higher_is_better=mode == "max",
        parameters=lambda model: ModelGroups(model, list(model.parameters())),
        optimizer=_optimizer,
        schedule=_schedule,
        clip=clip,
        epochs=epochs,
        batch_size=_batch_size(train, "train_dataloader()"),
        eval_batch_size=_batch_size(evaluation, "val_dataloader()"),
        drop_last=bool(getattr(train, "drop_last", True)),
    )


class Steps(nn.Module):
    """A LightningModule whose steps are forward passes, so that DDP and tracing see them."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.logged: dict[str, list[Any]] = {}
        module.log, module.log_dict = self._log, self._log_dict
        if hasattr(module, "setup"):
            module.setup("fit")
        self.module: Any = module

    def forward(self, batch: Any) -> Any:
        """Return the training loss; in evaluation run `validation_step`, which logs."""
        step = self.module.training_step if self.training else self.module.validation_step
        words = [batch, 0][: max(1, len(inspect.signature(step).parameters))]
        result = step(*words)
        if not self.training:
            return result
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if not isinstance(loss, torch.Tensor):
            raise UserError(f"training_step must return the loss, not {described(result)}")
        return loss

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.logged.setdefault(name, []).append(value)

    def _log_dict(self, values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in values.items():
            self._log(name, value)


class _Evaluate:
    """Runs `validation_step` over all batches and averages what it logs; metric objects are computed at the end."""

    def __init__(self, monitor: str) -> None:
        self.monitor = monitor

    def __call__(self, model: nn.Module, batches: Iterable[Batch], accelerator: Any) -> dict[str, float]:
        from accelerate.utils import gather_object, send_to_device

        bare: Steps = accelerator.unwrap_model(model)
        module = bare.module
        module.on_validation_epoch_start()
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        objects: dict[str, Any] = {}
        for batch in batches:
            bare.logged.clear()
            model(send_to_device(_join(batch.inputs, batch.targets), accelerator.device))
            for name, values in bare.logged.items():
                value = values[-1]
                if hasattr(value, "compute"):
                    objects[name] = value
                elif batch.count:
                    sums[name] = sums.get(name, 0.0) + float(value) * batch.count
                    counts[name] = counts.get(name, 0) + batch.count
        bare.logged.clear()
        module.on_validation_epoch_end()
        for name, values in bare.logged.items():
            if hasattr(values[-1], "compute"):
                objects[name] = values[-1]
            else:
                sums[name], counts[name] = float(values[-1]), 1
        named = {name: [(sums[name], counts[name])] for name in sums}
        if accelerator.num_processes > 1:
            parts = gather_object([named])
            named = {name: [pair for part in parts for pair in part.get(name, [])] for name in named}
        means = {name: sum(s for s, _ in pairs) / sum(c for _, c in pairs) for name, pairs in named.items()}
        for name, value in objects.items():
            means[name] = float(value.compute())
            value.reset()
        if self.monitor not in means:
            raise UserError(f"validation_step logs {', '.join(means) or 'nothing'}, not {self.monitor!r}")
        return means


def _split(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


def _join(inputs: Any, targets: Any) -> Any:
    return inputs if targets is None else [inputs, targets]


def _loader(source: Any, kind: str) -> Any:
    try:
        loader = getattr(source, kind)()
    except Exception as error:
        raise UserError(f"{type(source).__name__}.{kind}() fails: {' '.join(str(error).split())}") from error
    if isinstance(loader, list | tuple | Mapping):
        raise UserError(f"{type(source).__name__}.{kind}() returns several dataloaders: the lab takes one")
    return loader


def _batch_size(loader: Any, what: str) -> int:
    size = getattr(loader, "batch_size", None)
    if not isinstance(size, int):
        raise UserError(f"{what} has no batch_size: the lab shuffles and batches the samples itself")
    return size


def _optimizer(groups: ModelGroups) -> torch.optim.Optimizer:
    """Make the module's optimizer and keep its scheduler for `_schedule`."""
    configured = groups.model.module.configure_optimizers()  # type: ignore[union-attr, operator]
    optimizers, schedulers = _read(configured)
    if len(optimizers) != 1 or len(schedulers) > 1:
        raise UserError(
            f"configure_optimizers returns {len(optimizers)} optimizers and {len(schedulers)} schedulers: the lab "
            "takes one optimizer and at most one scheduler"
        )
    optimizer: torch.optim.Optimizer = optimizers[0]
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer._lightning_schedule = (schedulers[0], rates) if schedulers else None  # type: ignore[attr-defined]
    return optimizer


def _read(configured: Any) -> tuple[list[Any], list[Any]]:
    """Return the optimizers and schedulers of all forms that `configure_optimizers` may return."""
    if isinstance(configured, torch.optim.Optimizer):
        return [configured], []
    if isinstance(configured, Mapping):
        scheduler = configured.get("lr_scheduler")
        return [configured["optimizer"]], [] if scheduler is None else [scheduler]
    if isinstance(configured, Sequence):
        if len(configured) == 2 and all(isinstance(part, Sequence) for part in configured):
            return list(configured[0]), list(configured[1])
        read = [_read(part) for part in configured]
        return [o for part in read for o in part[0]], [s for part in read for s in part[1]]
    raise UserError(f"configure_optimizers returned {described(configured)}, not an optimizer")


def _schedule(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """Return the module's scheduler, stepped after every step or every epoch as it asks; None without one."""
    kept = getattr(optimizer, "_lightning_schedule", None)
    if kept is None:
        return None
    config, rates = kept
    entry = config if isinstance(config, Mapping) else {"scheduler": config}
    scheduler = entry["scheduler"]
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UserError("ReduceLROnPlateau follows the metric of each run: use a schedule that does not")
    for group, made in zip(optimizer.param_groups, rates, strict=True):
        if group["lr"] == made:
            continue
        # tuned after the scheduler was made: it scales the new rate as it scaled the old one
        if "max_lr" in group:
            raise UserError(f"--tune lr: {type(scheduler).__name__} sets the learning rate itself")
        base = group.get("initial_lr", made)
        chosen = group["lr"]
        group["initial_lr"], group["lr"] = chosen, chosen * (made / base if base else 1.0)
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    every = int(entry.get("frequency", 1)) * (1 if entry.get("interval", "epoch") == "step" else steps)
    return scheduler if every == 1 else EveryNth(scheduler, every)


class EveryNth:
    """A scheduler that is stepped in every nth step of the lab, which steps it after every batch."""

    def __init__(self, scheduler: Any, every: int) -> None:
        self.scheduler, self.every, self.count = scheduler, every, 0

    def step(self) -> None:
        """Count a step, and step the scheduler when it is due."""
        self.count += 1
        if self.count % self.every == 0:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state and the count."""
        return {"count": self.count, **self.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        rest = dict(state)
        self.count = int(rest.pop("count"))
        self.scheduler.load_state_dict(rest)
