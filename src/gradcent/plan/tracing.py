"""Find each parameter's weight vectors by watching one forward pass.

A weight vector is the set of elements that one output contracts over. That does not depend on the class of the module,
so a forward pass on an example batch shows it for any model: the operators that contract (``mm``, ``bmm``,
``convolution``, …) say which dims they sum over, and each operand is traced back to the parameter it is a view of.

The same pass shows each layer's *role* and *level*. An *input layer* contracts with data that derives from the model's
inputs without another learned contraction or a table look-up in between; any other layer is *hidden*. The level is the
share of the energy of the layer's inputs that is along 1, that is, in their mean over the weight vector. The
centralized gradient of a layer ignores exactly this part of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .forward import ExampleForward, on_device_of, run_example, tensors_in, undisturbed
from .provenance import layout_of
from .traced import Finding, Kind, Role, Traced
from .usage import Evidence, Origin, Usage
from .watch import Watch


def trace(
    model: nn.Module | Sequence[nn.Module], example: Any, example_forward: ExampleForward | None = None
) -> dict[Tensor, Traced]:
    """Run one forward pass and return what it shows about each parameter.

    Args:
        model: the model, in the mode (train or eval) in which the pass runs. It is left as it was.
        example: a batch: a tensor, a tuple of arguments or a dict of keyword arguments of the model's forward.
        example_forward: ``(model, example) -> anything``, for models that are called in another way.
    """
    models = [model] if isinstance(model, nn.Module) else list(model)
    if len(models) > 1 and example_forward is None:
        raise ValueError(
            f"example= with {len(models)} models needs example_forward=, a function (models, example) that runs them"
        )
    modules = list({id(module): module for root in models for module in root.modules()}.values())
    parameters = list({id(p): p for root in models for p in root.parameters()}.values())
    _check(models, parameters)
    example = on_device_of(example, parameters)
    real = all(not p.is_meta and not hasattr(p, "fake_mode") for p in parameters)
    watch = Watch(parameters, tensors_in(example), levels=real)

    def mark_arguments(module: nn.Module, arguments: Any, keywords: Any) -> None:
        watch.known.mark_passed(tensors_in((arguments, keywords)))

    with undisturbed(modules):
        hooks = [
            module.register_forward_pre_hook(mark_arguments, with_kwargs=True)
            for module in _readers_of_data(modules)
        ]
        try:
            with watch:
                run_example(
                    model if example_forward or len(models) > 1 else models[0], example, example_forward
                )
        except Exception as error:
            raise ValueError(_failure(models, example, error)) from error
        finally:
            for hook in hooks:
                hook.remove()
            for index, values in watch.overwritten.items():
                parameters[index].detach().copy_(values)
        return {
            parameter: _conclude(parameter, usage)
            for parameter, usage in zip(parameters, watch.usage, strict=True)
        }


def _conclude(parameter: Tensor, usage: Usage) -> Traced:
    if not usage.reached:
        return Traced(Finding.UNREACHED, None, "not reached by the example")
    kind: Kind | None = "conv" if "conv" in usage.kinds else "linear" if usage.kinds else None
    role: Role | None = None
    if usage.origins:
        role = "input" if Origin.INPUT in usage.origins else "hidden"
    level = _level(usage)

    def left_alone(finding: Finding, text: str) -> Traced:
        return Traced(finding, None, text, kind, role, level)

    if usage.indexed:
        return left_alone(Finding.INDEXED, "used by indexing, as an embedding table is")
    best = max(usage.contractions, default=None)
    if best is None:
        if usage.operators:
            return left_alone(Finding.UNCLEAR, f"used {', '.join(sorted(usage.operators))}")
        return left_alone(Finding.ELEMENTWISE, "used elementwise only: no output contracts over it")
    if best is Evidence.PRODUCT:
        text = "multiplied with another parameter before it meets data: choose by override"
        return left_alone(Finding.AMBIGUOUS, text)
    if best is Evidence.CONSTANT:
        return left_alone(Finding.CONSTANTS, "contracted with constants only: choose by override")
    uses = [use for use in usage.contractions[best] if use is not None]
    if len(uses) < len(usage.contractions[best]):
        return left_alone(Finding.UNCLEAR, "used through a view that gradcent cannot follow")
    if len(uses) > 1:
        text = "contracted over different dims in different places: choose by override"
        return left_alone(Finding.AMBIGUOUS, text)
    layout = layout_of(parameter.shape, uses[0])
    if layout is None:
        return left_alone(
            Finding.UNFIT, "its weight vectors do not fit a (batch, outer, vectors, inner) view"
        )
    return Traced(Finding.CONTRACTED, layout, "", kind, role, level)


def _level(usage: Usage) -> float | None:
    along = sum(float(level[0]) for level in usage.levels)
    whole = sum(float(level[1]) for level in usage.levels)
    return along / whole if whole > 0 else None


def _readers_of_data(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the modules whose arguments are data: not the parametrizations, whose arguments are parameters."""
    lists = [module for module in modules if isinstance(module, nn.utils.parametrize.ParametrizationList)]
    parametrizations = {id(module) for root in lists for module in root.modules()}
    scripted = torch.jit.ScriptModule  # takes no hooks
    return [
        module
        for module in modules
        if id(module) not in parametrizations and not isinstance(module, scripted)
    ]


def _check(models: Sequence[nn.Module], parameters: Sequence[Tensor]) -> None:
    for root in models:
        for name, parameter in root.named_parameters():
            if torch.nn.parameter.is_lazy(parameter):
                raise ValueError(
                    f"parameter {name} is lazy and has no shape yet: run one forward pass before tracing"
                )
            if hasattr(parameter, "to_local"):
                raise ValueError(
                    f"parameter {name} is sharded (DTensor), and a sharded model computes with other tensors: call "
                    "plan = gradcent.explain(model, example=batch) before sharding, and attach with plan=plan"
                )
    if not parameters:
        raise ValueError("example= was given, but the model has no parameters to trace")


def _failure(models: Sequence[nn.Module], example: Any, error: Exception) -> str:
    names = ", ".join(type(root).__name__ for root in models)
    reason = (str(error).strip() or "no message").split("\n")[0][:300]
    hint = ""
    if any(p.is_meta for root in models for p in root.parameters()):
        hint = "; on meta tensors a forward pass must not read values: trace a real, small model of the same kind"
    elif isinstance(example, (list, tuple)):
        hint = "; if the batch holds more than the inputs, pass the inputs only, for example example=batch[0]"
    return (
        f"the forward pass of {names} on example= failed ({type(error).__name__}: {reason}). The model is as it was. "
        f"example= is passed as the forward takes it: a tensor, a tuple of arguments, a dict of keywords{hint}; "
        "example_forward=lambda model, example: … calls the model in any other way"
    )
