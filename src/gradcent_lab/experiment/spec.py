"""What a user writes to have their own model compared: a function that returns an `Experiment`.

    def my_experiment() -> Experiment:
        return Experiment(
            name="digits",
            model=lambda: nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)),
            train_data=TensorDataset(x_train, y_train),
            eval_data=TensorDataset(x_test, y_test),
            loss=nn.functional.cross_entropy,
            metric=lambda output, target: output.argmax(1) == target,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
            epochs=10,
            batch_size=64,
        )

`gradcent compare module:my_experiment` trains it with and without centralization from the same initial
weights on the same batches. The recipes of the paper return the same thing.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import Dataset

    from gradcent_lab.experiment.run_config import Arm


@dataclass(frozen=True)
class Experiment:
    """A training run, but for the seed and for whether gradients are centralized.

    Attributes:
        name: a short word, used for the folder of its runs and in tables.
        model: builds the network; called after seeding, so equal seeds give equal initial weights.
        train_data, eval_data: a map-style `Dataset` of (input, target) pairs, which the lab shuffles and batches
            (random augmentation inside it is seeded per sample, so both arms see the same images); or an iterable
            of ready (inputs, targets) batches, such as a `DataLoader`, which is iterated once per epoch after
            seeding; or a function of no arguments that returns either.
        loss: (output, target) -> the mean loss of a batch.
        metric: (output, target) -> one value per sample (or one value for the batch); its mean is reported,
            times 100 where it is boolean, so a correctness comes out as a percentage.
        optimizer: (parameters) -> a `torch.optim.Optimizer`.
        schedule: (optimizer, steps per epoch) -> a learning rate scheduler, stepped after every optimizer step.
        parameters: (model) -> what `optimizer` is given; all parameters where it is None.
        drop_last, eval_drop_last: whether a last partial batch is left out. The authors left it out of training
            and, on ImageNet, of validation too.
        observe: (model) -> numbers to keep for every iteration, called between backward and step.
        clip: the largest norm of the whole gradient; clipping comes before centralization.
        forward: (model, inputs, targets) -> output, in training, for models that are not called with inputs alone.
        evaluate: (model, batches, accelerator) -> named numbers over all evaluation data, in place of the mean of
            `metric`; they are kept for every epoch, and the one called `metric_name` is the run's.
        metrics: the names of what `evaluate` returns; each becomes a line of the report's table.
        recalibrate_bn: evaluate with BatchNorm statistics that are re-estimated on training batches instead of the
            running ones. Without it, the last epoch is evaluated both ways and `compare` warns if they disagree.
        closing: (model, folder) -> None, called once at the end to leave more files in the run's folder; the folder
            is None in all processes but the first.
        settings: everything that tells this experiment from another, as JSON values. Left None, it is read off
            the objects above and the source files they come from.

    >>> data = torch.utils.data.TensorDataset(torch.rand(64, 3), torch.randint(2, (64,)))
    >>> experiment = Experiment(
    ...     name="example",
    ...     model=lambda: nn.Linear(3, 2),
    ...     train_data=data,
    ...     eval_data=data,
    ...     loss=nn.functional.cross_entropy,
    ...     metric=lambda output, target: output.argmax(1) == target,
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     epochs=2,
    ...     batch_size=16,
    ... )
    >>> experiment.higher_is_better
    True
    """

    name: str
    model: Callable[[], nn.Module]
    train_data: Dataset[Any] | Iterable[Any] | Callable[[], Any]
    eval_data: Dataset[Any] | Iterable[Any] | Callable[[], Any]
    loss: Callable[[Any, Any], torch.Tensor]
    metric: Callable[[Any, Any], torch.Tensor]
    optimizer: Callable[[Any], Optimizer]
    epochs: int
    batch_size: int
    metric_name: str = "accuracy"
    higher_is_better: bool = True
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    parameters: Callable[[nn.Module], Any] | None = None
    drop_last: bool = True
    eval_drop_last: bool = False
    eval_batch_size: int | None = None
    observe: Callable[[nn.Module], Mapping[str, float]] | None = None
    clip: float | None = None
    forward: Callable[[nn.Module, Any, Any], Any] | None = None
    evaluate: Callable[[nn.Module, Iterable[Any], Any], Mapping[str, float]] | None = None
    metrics: tuple[str, ...] = ()
    recalibrate_bn: bool = False
    closing: Callable[[nn.Module, Path | None], None] | None = None
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Measurement:
    """A recipe's run that is not a training run: `measure(seed, arm)` returns the result and rows.

    The store keeps the rows where it keeps a training run's epochs.
    """

    measure: Callable[[int, Arm], tuple[float, list[dict[str, Any]]]]
    metric_name: str
    higher_is_better: bool


def build_parts(experiment: Experiment) -> tuple[nn.Module, Optimizer]:
    """Build the model and its optimizer once, without changing torch's random state."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = experiment.model()
        params = experiment.parameters(model) if experiment.parameters else list(model.parameters())
        return model, experiment.optimizer(params)


def describe(experiment: Experiment, parts: tuple[nn.Module, Optimizer] | None = None) -> dict[str, Any]:
    """Return the settings that identify an experiment: its own, or what its parts show.

    They include hashes of the source files of its functions, so that a changed loss does not reuse old runs.
    `parts` are a model and an optimizer that are built already.
    """
    # named only where it is set, so that runs stored before the field existed keep their names
    optional = {"recalibrate_bn": True} if experiment.recalibrate_bn else {}
    if experiment.settings is not None:
        shape = {"epochs": experiment.epochs, "batch_size": experiment.batch_size}
        return {**experiment.settings, **shape, **optional}
    model, optimizer = parts or build_parts(experiment)
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    shapes = [(name, list(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
    functions = (
        experiment.model,
        experiment.loss,
        experiment.metric,
        experiment.optimizer,
        experiment.schedule,
    )
    return {
        "name": experiment.name,
        "model": type(model).__qualname__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "architecture": hashlib.sha256(f"{model!r}{shapes}".encode()).hexdigest()[:16],
        "optimizer": type(optimizer).__qualname__,
        "optimizer_groups": groups,
        "epochs": experiment.epochs,
        "batch_size": experiment.batch_size,
        "drop_last": experiment.drop_last,
        "metric_name": experiment.metric_name,
        "higher_is_better": experiment.higher_is_better,
        "train_samples": _length(experiment.train_data),
        "eval_samples": _length(experiment.eval_data),
        "sources": sorted({text for function in functions if (text := _source(function))}),
        **optional,
    }


def _length(data: Any) -> int | None:
    return len(data) if hasattr(data, "__len__") else None


def _source(part: Any) -> str | None:
    """Hash the file a function or class comes from; None for what is built in."""
    if part is None:
        return None
    part = getattr(part, "func", part)  # functools.partial
    try:
        file = inspect.getsourcefile(part if inspect.isroutine(part) or inspect.isclass(part) else type(part))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()[:16]
    except (TypeError, OSError):
        return None
