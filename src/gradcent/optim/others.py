"""The rest of torch.optim's dense optimizers, each given Φ(g) as the paper's five are."""

import torch

from ._base import Seamed
from ._torch_step import centralized_step


class RMSprop(Seamed, torch.optim.RMSprop):
    """torch.optim.RMSprop with GC."""

    step = centralized_step(torch.optim.RMSprop, "rmsprop")


class NAdam(Seamed, torch.optim.NAdam):
    """torch.optim.NAdam with GC."""

    step = centralized_step(torch.optim.NAdam, "nadam")


class RAdam(Seamed, torch.optim.RAdam):
    """torch.optim.RAdam with GC."""

    step = centralized_step(torch.optim.RAdam, "radam")


class Adadelta(Seamed, torch.optim.Adadelta):
    """torch.optim.Adadelta with GC."""

    step = centralized_step(torch.optim.Adadelta, "adadelta")


class Adamax(Seamed, torch.optim.Adamax):
    """torch.optim.Adamax with GC."""

    step = centralized_step(torch.optim.Adamax, "adamax")


class ASGD(Seamed, torch.optim.ASGD):
    """torch.optim.ASGD with GC."""

    step = centralized_step(torch.optim.ASGD, "asgd")


class Rprop(Seamed, torch.optim.Rprop):
    """torch.optim.Rprop with GC: the signs are those of the centralized gradient."""

    step = centralized_step(torch.optim.Rprop, "rprop")


class Adafactor(Seamed, torch.optim.Adafactor):
    """torch.optim.Adafactor with GC."""

    step = centralized_step(torch.optim.Adafactor, "adafactor")
