"""attach and detach: turn GC on and off for an existing optimizer of any class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from .attachment import ATTACHMENTS, Attachment
from .dtensor import centralize as sharded
from .gradient_hooks import hooked_handles
from .operator import vector_means
from .optim._class_exchange import centralized_class, plain_class
from .options import At, Decay, NonFinite, Options
from .plan import ExampleForward, Layers, Overrides, Plan, models_of
from .plan.planner import MIN_LENGTH
from .user_warning import warn_user

Opt = TypeVar("Opt", bound=torch.optim.Optimizer)


def attach(
    optimizer: Opt,
    model: nn.Module | Sequence[nn.Module] | None = None,
    *,
    plan: Plan | None = None,
    layers: Layers = "all",
    at: At = "gradient",
    decay: Decay = "auto",
    overrides: Overrides | None = None,
    min_length: int = MIN_LENGTH,
    kernel: str = "auto",
    nonfinite: NonFinite = "propagate",
    example: Any = None,
    example_forward: ExampleForward | None = None,
) -> Opt:
    """Centralize the gradients (or updates) of ``model``'s weight vectors in every step of ``optimizer``.

    Returns the same optimizer. Its state, checkpoints, schedulers and param groups do not change. A param group with
    ``"centralize": False`` is left alone.

    Args:
        optimizer: any torch.optim.Optimizer but SparseAdam.
        model: the model (or models) it trains, whose layers define each tensor's weight vectors.
        plan: a ready plan instead of the model.
        layers: "all", or only "conv" or "linear" layers; with an example also "hidden" or "input" layers.
        at: "gradient" (the paper's algorithms) or "update", where the whole change of the weight in a
            step, decay included, is projected, so that every weight vector keeps its sum under any optimizer.
        decay: "auto", or how the optimizer applies weight decay if gradcent cannot know: "coupled"
            gives the paper's P(g + λw); "decoupled" leaves λw out of the projection.
        overrides: layouts by parameter name pattern or module type, see docs/layouts.md.
        min_length: weight vectors shorter than this are left alone, see docs/layouts.md.
        kernel: "auto", or one of "native", "triton", "foreach", "reference", obeyed or refused.
        nonfinite: "propagate" nan and inf as the optimizer would see them, "raise", or "skip_step".
        example: a batch, passed to the model as its forward takes it (a tensor, a tuple of arguments, a dict of
            keywords). One forward pass shows the weight vectors of modules that gradcent does not know.
        example_forward: ``(model, example) -> anything``, for models that are called in another way.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> before = model.weight.sum(1)
    >>> model(torch.rand(4, 3)).square().mean().backward()
    >>> optimizer.step()  # changes the weights, but not the sum of any weight vector
    >>> torch.allclose(model.weight.sum(1), before)
    True
    """
    options = Options(layers, at, decay, overrides, kernel, nonfinite, min_length)
    _check_optimizer(optimizer, model)
    centralized: Any = centralized_class(type(optimizer))  # type: ignore[arg-type]
    centralized._check_options(options)
    attachment = Attachment(optimizer, model, plan, options, example=example, example_forward=example_forward)
    with _undone_on_error(optimizer, attachment):
        _rebind_scheduler_step(optimizer)
        optimizer.__class__ = centralized
        optimizer._patch_step_function()
        optimizer._set_attachment(attachment)  # type: ignore[attr-defined]
        _warn_if_momentum_uncentered(optimizer, attachment)
        _warn_if_gradients_hooked(attachment)
    return optimizer


def detach(optimizer: Opt) -> Opt:
    """Turn GC off: the optimizer gets its plain class back and keeps its present state.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> type(gradcent.detach(optimizer)) is torch.optim.SGD
    True
    """
    attachment = attached(optimizer)
    if attachment is None:
        raise ValueError(f"gradcent is not attached to this {type(optimizer).__name__}")
    if optimizer._gradcent_hooks is not None:  # type: ignore[attr-defined]
        optimizer._gradcent_hooks.remove()  # type: ignore[attr-defined]
    _rebind_scheduler_step(optimizer)
    attachment.restore_switches(optimizer)
    ATTACHMENTS.discard(attachment)
    for name in [name for name in vars(optimizer) if name.startswith("_gradcent")]:
        del optimizer.__dict__[name]
    optimizer.__class__ = plain_class(type(optimizer))
    optimizer._patch_step_function()  # torch patches a class on first use, and this one may be unused
    return optimizer


@contextlib.contextmanager
def _undone_on_error(optimizer: torch.optim.Optimizer, attachment: Attachment) -> Iterator[None]:
    """Undo a failed attach: the object's class and attributes, and the class's `step`, which other objects use."""
    plain, attributes = type(optimizer), dict(optimizer.__dict__)
    hooks = [
        (value, dict(value)) for name, value in attributes.items() if name.startswith("_optimizer_step_")
    ]
    steps = [(base, base.__dict__["step"]) for base in plain.__mro__ if "step" in base.__dict__]
    try:
        yield
    except BaseException:
        optimizer.__class__ = plain
        optimizer.__dict__.clear()
        optimizer.__dict__.update(attributes)
        for value, items in hooks:
            value.clear()
            value.update(items)
        for base, step in steps:
            base.step = step  # type: ignore[attr-defined]
        attachment.restore_switches(optimizer)
        ATTACHMENTS.discard(attachment)
        raise


def _warn_if_gradients_hooked(attachment: Attachment) -> None:
    names = [entry.name for parameter, entry in attachment.plan.named() if hooked_handles(parameter)]
    if names:
        warn_user(
            f"gradcent: attach_to_gradients centralizes the gradients of this model already ({names[0]}); use one of "
            "the two: call remove() on what attach_to_gradients returned, or do not attach to the optimizer",
        )


def attached(optimizer: torch.optim.Optimizer) -> Attachment | None:
    """Return what is attached to an optimizer (its `plan`, `options`, `skipped_steps`), or None.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> gradcent.attached(optimizer) is None
    True
    >>> gradcent.attached(gradcent.attach(optimizer, model, at="update")).options.at
    'update'
    """
    return getattr(optimizer, "_gradcent", None)


def _check_optimizer(optimizer: Any, model: Any) -> None:
    """Raise for optimizers that cannot be attached to, with the alternative."""
    if isinstance(optimizer, nn.Module) and isinstance(model, torch.optim.Optimizer):
        raise TypeError("the arguments are swapped: call gradcent.attach(optimizer, model)")
    module = type(optimizer).__module__
    if module.startswith("deepspeed.") and not module.startswith("deepspeed.ops."):
        raise TypeError(_FLAT_PARAMETERS)
    if not isinstance(optimizer, torch.optim.Optimizer):
        inner = next(
            (name for name in ("optimizer", "base", "base_optimizer") if hasattr(optimizer, name)), None
        )
        hint = (
            f"; attach to the optimizer inside it: gradcent.attach(optimizer.{inner}, model)" if inner else ""
        )
        raise TypeError(f"attach needs a torch.optim.Optimizer, got {type(optimizer).__name__}{hint}")
    # Accelerate's wrapper, ZeroRedundancyOptimizer, SAM, Opacus
    for name in ("optimizer", "optim", "base_optimizer", "original_optimizer"):
        if isinstance(getattr(optimizer, name, None), torch.optim.Optimizer):
            raise TypeError(
                f"{type(optimizer).__name__} only passes its steps on to another optimizer; "
                f"attach to that one: gradcent.attach(optimizer.{name}, model)"
            )
    if "_optimizer_step_pre_hooks" not in optimizer.__dict__:
        raise TypeError(
            f"{type(optimizer).__name__} does not call torch.optim.Optimizer.__init__, so it has no step hooks; if it "
            "wraps another optimizer, attach to that one"
        )
    inner = getattr(optimizer, "optimizers", None)  # torchtitan's container
    if isinstance(inner, (list, tuple)) and any(isinstance(item, torch.optim.Optimizer) for item in inner):
        raise TypeError(
            f"{type(optimizer).__name__} only passes its steps on to the optimizers in it, and does not show their "
            "decay; attach to each of them: gradcent.integrations.attach_each(optimizer.optimizers, model)"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise TypeError(
            "SparseAdam trains embeddings through sparse gradients, which have no weight vectors to centralize; "
            "give it the embeddings and attach to the optimizer of the other parameters"
        )
    if attached(optimizer) is not None:
        raise ValueError(
            "gradcent is attached to this optimizer already; gradcent.detach(optimizer) first to change its options"
        )
    params = [param for group in optimizer.param_groups for param in group["params"]]
    models = [] if model is None else models_of(model)
    modules = [module for root in models for module in root.modules()]
    wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for module in modules)
    known = {id(param) for root in models for param in root.parameters()}
    pieces = models and all(param.ndim < 2 and id(param) not in known for param in params)
    if wrapped or pieces or any(_is_flat(param) for param in params):
        raise TypeError(_FLAT_PARAMETERS)


_FLAT_PARAMETERS = (
    "this optimizer does not hold the model's parameters but flattened pieces of them (FSDP1, DeepSpeed ZeRO), in "
    "which weight vectors cannot be found. Call gradcent.attach_to_gradients(model) before wrapping the model"
)


def _is_flat(parameter: Any) -> bool:
    # FSDP1's flat parameters, its pieces of them with use_orig_params=True, and ZeRO 3's
    marks = ("_fsdp_flattened", "ds_id")
    return type(parameter).__name__ == "FlatParameter" or any(hasattr(parameter, mark) for mark in marks)


def _warn_if_momentum_uncentered(optimizer: torch.optim.Optimizer, attachment: Attachment) -> None:
    """Warn if momentum was accumulated without GC: it moves the weight sums until it has decayed."""
    for parameter, entry in attachment.plan.named():
        momentum = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if momentum is None or entry.layout is None:
            continue
        # Each rank checks its local shard: an all-reduce would hang where another rank holds no momentum.
        local = sharded.whole_vectors(momentum, entry.layout)
        if local is None:
            continue
        if float(vector_means(*local).abs().max()) > 1e-4 * float(local[0].abs().max()):
            warn_user(
                f"gradcent: attached in mid-training, and the momentum of {entry.name} was accumulated without GC. "
                "That is fine, but the weight sums drift until it has decayed, by -lr*β/(1-β) times its sum",
            )
            return


def _rebind_scheduler_step(optimizer: torch.optim.Optimizer) -> None:
    """Replace the wrapper of `step` that a learning-rate scheduler set on the object: it calls the old class's step."""
    wrapper = optimizer.__dict__.get("step")
    if wrapper is None:
        return
    if not getattr(wrapper, "_wrapped_by_lr_sched", False):
        raise ValueError(
            "optimizer.step was replaced on this object, and the replacement may bypass gradcent silently; "
            "attach before it is replaced, and detach after it is restored"
        )

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what the scheduler's own wrapper records
        return type(optimizer).step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]
