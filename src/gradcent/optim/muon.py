"""Muon with GC, where torch has it (2.9 and later)."""

import torch

from ._base import Seamed
from ._torch_step import centralized_step


class Muon(Seamed, torch.optim.Muon):
    """torch.optim.Muon whose momentum, before it is orthogonalized, sees Φ(g)."""

    step = centralized_step(torch.optim.Muon, "muon")
