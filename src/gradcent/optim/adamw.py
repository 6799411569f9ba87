"""AdamW with GC: the decay is decoupled and stays outside the projection."""

import torch

from ._base import Seamed
from ._torch_step import centralized_step


class AdamW(Seamed, torch.optim.AdamW):
    """torch.optim.AdamW whose both moments see Φ(g)."""

    # until torch 2.6 a class and a functional form of its own
    step = centralized_step(
        torch.optim.AdamW, "adam" if issubclass(torch.optim.AdamW, torch.optim.Adam) else "adamw"
    )
