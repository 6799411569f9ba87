"""Muon with GC, where torch has it (2.9 and later)."""

import torch

from ._torch_step import PatchedStep, patched_step


class Muon(PatchedStep, torch.optim.Muon):
    """torch.optim.Muon whose momentum, before it is orthogonalized, sees Φ(g).

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.Muon([model.weight], lr=1e-3, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.Muon, "muon")
