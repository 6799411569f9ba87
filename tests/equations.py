"""The independent truth: weight vectors picked out one by one, and the paper's equations in float64.

Nothing here uses gradcent. A weight vector is a view of the tensor, found from the layer's definition by
indexing; Φ is `v - v.mean()` in a Python loop; the optimizers are written out from their papers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

Views = list[Tensor]


def vectors(owner: nn.Module, name: str, tensor: Tensor) -> Views:
    """Return the weight vectors of one parameter as views of `tensor` (same shape as it), or [] if it has none."""
    if isinstance(owner, nn.modules.conv._ConvTransposeNd) and name == "weight":
        # output channel (g, o) is computed from the input channels of group g with tensor[i, o]
        each = owner.in_channels // owner.groups
        found = [
            tensor[group * each : (group + 1) * each, out]
            for group in range(owner.groups)
            for out in range(owner.out_channels // owner.groups)
        ]
    elif (
        (isinstance(owner, (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)) and name == "weight")
        or (isinstance(owner, nn.MultiheadAttention) and name.endswith("proj_weight"))
        or (isinstance(owner, (nn.RNNBase, nn.RNNCellBase)) and name.startswith("weight_"))
    ):
        found = [tensor[out] for out in range(tensor.shape[0])]
    elif type(owner).__name__ == "Conv1D":
        found = [tensor[:, out] for out in range(tensor.shape[1])] if name == "weight" else []
    else:
        found = []
    return [] if found and found[0].numel() < 2 else found  # a vector of one element would be frozen


def finders(model: nn.Module) -> list[tuple[nn.Parameter, Callable[[Tensor], Views]]]:
    """Return each parameter with the function that picks out the weight vectors of a tensor of its shape."""
    found: dict[nn.Parameter, Callable[[Tensor], Views]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            found.setdefault(parameter, lambda t, m=module, n=name: vectors(m, n, t))
    return list(found.items())


def centralize(gradient: Tensor, find: Callable[[Tensor], Views]) -> Tensor:
    """Φ(g) of Eq. 1, vector by vector, in the widest dtype."""
    wide = gradient.to(torch.complex128 if gradient.is_complex() else torch.float64).clone()
    for vector in find(wide):
        vector -= vector.mean()
    return wide


def handed(
    gradient: Tensor, weight: Tensor, decay: float, find: Callable[[Tensor], Views], *, maximize: bool = False
) -> Tensor:
    """The gradient that makes an optimizer which adds λw itself arrive at P(±g + λw), in float64."""
    sign = -1.0 if maximize else 1.0
    wide, weight = gradient.double(), weight.detach().double()
    target = centralize(sign * wide + decay * weight, find) if find(wide) else sign * wide + decay * weight
    return sign * (target - decay * weight)


def centralize_gradients(model: nn.Module, decay: float = 0.0, *, maximize: bool = False) -> None:
    """Replace every `grad` by what an optimizer with coupled decay must be handed."""
    for parameter, find in finders(model):
        if parameter.grad is not None and find(parameter.detach()):
            new = handed(parameter.grad, parameter, decay, find, maximize=maximize)
            parameter.grad = new.to(parameter.dtype)


def project_change(model: nn.Module, before: dict[nn.Parameter, Tensor]) -> None:
    """Replace the change of every weight since `before` by its projection: `at="update"`."""
    with torch.no_grad():
        for parameter, find in finders(model):
            change = centralize(parameter.double() - before[parameter].double(), find)
            parameter.copy_(before[parameter].double() + change)


def sums(model: nn.Module) -> Tensor:
    """The sum of every weight vector of a model."""
    return torch.cat(
        [
            torch.stack([vector.double().sum() for vector in find(parameter.detach())])
            for parameter, find in finders(model)
            if find(parameter.detach())
        ]
    )


def steps(name: str, model: nn.Module, **options: float) -> Iterator[None]:
    """Train with the paper's optimizers written out: each `next` uses the gradients that are there now."""
    rule = {"SGD": _sgd, "SGDW": _sgd, "Adam": _adam, "AdamW": _adam, "Adagrad": _adagrad}[name]
    decoupled = name in ("SGDW", "AdamW")
    memory: dict[nn.Parameter, dict[str, Tensor]] = {}
    t = 0
    while True:
        t += 1
        with torch.no_grad():
            for w, find in finders(model):
                if w.grad is None:
                    continue
                lr, decay = options["lr"], options.get("weight_decay", 0.0)
                g = -w.grad if options.get("maximize") else w.grad
                if decoupled:
                    ghat = centralize(g, find)  # Φ(g)
                    w.mul_(1 - lr * decay)
                else:
                    ghat = centralize(g + decay * w, find)  # P(g + λw), Section 3.4
                w.sub_(lr * rule(ghat, memory.setdefault(w, {}), t, options))
        yield


def _sgd(g: Tensor, state: dict[str, Tensor], t: int, options: dict[str, float]) -> Tensor:
    """Algorithm 1, with torch's momentum m = βm + ĝ (the first m is ĝ itself)."""
    beta, damp = options.get("momentum", 0.0), options.get("dampening", 0.0)
    state["m"] = g.clone() if t == 1 else beta * state["m"] + (1 - damp) * g
    if options.get("nesterov"):
        return g + beta * state["m"]
    return state["m"] if beta else g


def _adam(g: Tensor, state: dict[str, Tensor], t: int, options: dict[str, float]) -> Tensor:
    """Algorithm 2."""
    b1, b2 = options.get("betas", (0.9, 0.999))
    state["m"] = b1 * state.get("m", torch.zeros_like(g)) + (1 - b1) * g
    state["v"] = b2 * state.get("v", torch.zeros_like(g)) + (1 - b2) * g * g
    second = state["v"]
    if options.get("amsgrad"):
        state["max"] = second = torch.maximum(state.get("max", torch.zeros_like(g)), second)
    return (state["m"] / (1 - b1**t)) / ((second / (1 - b2**t)).sqrt() + options.get("eps", 1e-8))


def _adagrad(g: Tensor, state: dict[str, Tensor], t: int, options: dict[str, float]) -> Tensor:
    state["sum"] = state.get("sum", torch.zeros_like(g)) + g * g
    rate = 1 / (1 + (t - 1) * options.get("lr_decay", 0.0))
    return rate * g / (state["sum"].sqrt() + options.get("eps", 1e-10))
