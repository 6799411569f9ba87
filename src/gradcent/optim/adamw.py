"""AdamW with GC: the decay is decoupled and stays outside the projection."""

import torch

from ._base import Seamed
from ._seam import centralized_step


class AdamW(Seamed, torch.optim.AdamW):
    """torch.optim.AdamW whose both moments see Φ(g)."""

    step = centralized_step(torch.optim.AdamW, "adam")
