"""The first batch of a trainer as an example for tracing, taken without disturbing the data or the random numbers.

A trainer needs one only if the class rules do not explain its model, or if layers are selected by role.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..plan import ExampleForward, Plan

PLANNING = ("layers", "overrides", "min_length")
EXAMPLE = ("example", "example_forward")
logger = logging.getLogger("gradcent")


def with_example(
    model: Any,
    options: Mapping[str, Any],
    batch: Callable[[], Any],
    forward: ExampleForward | None = None,
) -> dict[str, Any]:
    """Return the options, with the batch as the example if the model needs one and its forward pass takes it.

    ``forward`` runs a model that is called in another way, as ``example_forward`` of :func:`gradcent.attach`.
    """
    options = dict(options)
    if options.get("plan") is not None or any(options.get(name) is not None for name in EXAMPLE):
        return options
    by_role = options.get("layers") in ("hidden", "input")
    if not by_role and Plan.of(model, **_planning(options)).unknown_share()[0] <= 0.01:
        return options
    example = _inputs_of(model, batch()) if forward is None else batch()
    if example is None:
        return options
    traced = {"example": example} if forward is None else {"example": example, "example_forward": forward}
    try:
        Plan.of(model, **traced, **_planning(options))
    except ValueError as error:
        # attach itself then warns about the modules it does not know, or asks for an example.
        logger.info("gradcent: the first batch cannot be traced: %s", error)
        return options
    return {**options, **traced}


def batch_of(loader: Any) -> Any:
    """Return a small batch of a loader's data set, without touching its sampler; None for iterable data sets."""
    dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
    if dataset is None or collate is None or isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    with torch.random.fork_rng():
        return collate([dataset[index] for index in range(min(2, len(dataset)))])


def _planning(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in PLANNING if name in options}


def _inputs_of(model: Any, batch: Any) -> Any:
    """Return the part of a batch that the model's forward takes."""
    if isinstance(batch, Mapping):
        parameters = inspect.signature(model.forward).parameters
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        return {name: value for name, value in batch.items() if takes_all or name in parameters}
    if isinstance(batch, (list, tuple)) and batch:
        return batch[0]
    return batch
