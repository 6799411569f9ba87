"""SGD with momentum and GC: Algorithm 1, with PyTorch's momentum (m = βm + ĝ) unless `dampening` is set."""

import torch

from ._base import Seamed
from ._torch_step import centralized_step


class SGD(Seamed, torch.optim.SGD):
    """torch.optim.SGD that is given Φ(g), and P(g + λw) where there is weight decay."""

    step = centralized_step(torch.optim.SGD, "sgd")
