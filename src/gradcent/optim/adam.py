"""Adam with GC: Algorithm 2."""

import torch

from ._base import Seamed
from ._torch_step import centralized_step


class Adam(Seamed, torch.optim.Adam):
    """torch.optim.Adam whose both moments see Φ(g), or P(g + λw) where there is (coupled) weight decay."""

    step = centralized_step(torch.optim.Adam, "adam")
