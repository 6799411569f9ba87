"""Muon with GC, where torch has it (2.9 and later)."""

import torch

from ._torch_step import PatchedStep, patched_step


class Muon(PatchedStep, torch.optim.Muon):
    """torch.optim.Muon whose momentum, before it is orthogonalized, sees Φ(g)."""

    step = patched_step(torch.optim.Muon, "muon")
