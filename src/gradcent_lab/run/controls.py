"""Controls: what a run does in place of GC, to tell what the effect of GC comes from.

rescaled: the gradient of each weight keeps its direction and gets the norm of the centralized one. If this arm equals
    GC, the effect is one of step size.
random direction: each weight vector loses its part along a fixed random unit vector of its layer, as GC removes the
    part along (1, …, 1)/√M. If this arm equals GC, the effect is one of rank.
centred images: the mean over channels and pixels is subtracted from each image. In the input layer, GC computes the
    weight gradient from centred patches, so this arm is close to GC of the input layer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gradcent_lab.data.random_streams import generator
from gradcent_lab.errors import UserError

RESCALED, RANDOM_DIRECTION, CENTRED_IMAGES = "rescaled", "random direction", "centred images"
CONTROLS = (RESCALED, RANDOM_DIRECTION, CENTRED_IMAGES)


class GradientControl:
    """Changes the gradients of all weights that GC would centralize, before the optimizer's step."""

    def __init__(
        self, control: str, optimizer: torch.optim.Optimizer, model: nn.Module, *, seed: int, attach: bool
    ) -> None:
        import gradcent

        if control not in CONTROLS:
            raise UserError(f"unknown control {control!r}: choose one of {', '.join(CONTROLS)}")
        if attach:
            raise UserError(f"control {control!r} stands in place of GC: the arm must have no `attach`")
        decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        self.control = control
        self.weights: list[tuple[torch.Tensor, Any, float, torch.Tensor]] = []
        if control == CENTRED_IMAGES:
            return
        for param, entry in gradcent.explain(model).named():
            if entry.layout is not None and id(param) in decays:
                direction = _unit_vector(param, entry.layout, generator(seed, "direction", entry.name))
                self.weights.append((param, entry.layout, decays[id(param)], direction))

    def centre(self, inputs: Any) -> Any:
        """Return the inputs of a batch, each image without its mean where that is the control."""
        if self.control != CENTRED_IMAGES:
            return inputs
        return inputs - inputs.mean(tuple(range(1, inputs.dim())), keepdim=True)

    @torch.no_grad()
    def change_gradients(self) -> None:
        """Apply the control to the gradients in place."""
        import gradcent

        for param, layout, decay, direction in self.weights:
            if param.grad is None:
                continue
            if self.control == RESCALED:
                norm = param.grad.norm()
                if norm > 0:
                    param.grad.mul_(gradcent.centralize(param.grad, layout).norm() / norm)
                continue
            # the optimizer adds λw to the gradient; like GC, the projection covers it: P(g + λw) − λw
            shape, dims = layout.split(param.shape)
            whole = param.grad.add(param, alpha=decay).view(shape)
            param.grad.view(shape).sub_((whole * direction).sum(dims, keepdim=True) * direction)


def _unit_vector(param: torch.Tensor, layout: Any, random: torch.Generator) -> torch.Tensor:
    """Return a random unit vector of a weight vector's length, shaped to multiply the split weight."""
    shape, dims = layout.split(param.shape)
    sizes = [size if dim in dims else 1 for dim, size in enumerate(shape)]
    vector = torch.randn(math.prod(sizes), generator=random, dtype=torch.float64)
    unit: torch.Tensor = vector / vector.norm()
    return unit.to(param.dtype).view(sizes).to(param.device)
