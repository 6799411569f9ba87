"""Adagrad with GC."""

import torch

from ._base import Seamed
from ._torch_step import centralized_step


class Adagrad(Seamed, torch.optim.Adagrad):
    """torch.optim.Adagrad whose sum of squares sees Φ(g), or P(g + λw) where there is weight decay."""

    step = centralized_step(torch.optim.Adagrad, "adagrad")
