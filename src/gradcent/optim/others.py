"""The other dense optimizers of torch.optim with GC."""

import torch

from ._torch_step import PatchedStep, patched_step


class RMSprop(PatchedStep, torch.optim.RMSprop):
    """torch.optim.RMSprop with GC."""

    step = patched_step(torch.optim.RMSprop, "rmsprop")


class NAdam(PatchedStep, torch.optim.NAdam):
    """torch.optim.NAdam with GC."""

    step = patched_step(torch.optim.NAdam, "nadam")


class RAdam(PatchedStep, torch.optim.RAdam):
    """torch.optim.RAdam with GC."""

    step = patched_step(torch.optim.RAdam, "radam")


class Adadelta(PatchedStep, torch.optim.Adadelta):
    """torch.optim.Adadelta with GC."""

    step = patched_step(torch.optim.Adadelta, "adadelta")


class Adamax(PatchedStep, torch.optim.Adamax):
    """torch.optim.Adamax with GC."""

    step = patched_step(torch.optim.Adamax, "adamax")


class ASGD(PatchedStep, torch.optim.ASGD):
    """torch.optim.ASGD with GC."""

    step = patched_step(torch.optim.ASGD, "asgd")


class Rprop(PatchedStep, torch.optim.Rprop):
    """torch.optim.Rprop with GC: the signs are those of the centralized gradient."""

    step = patched_step(torch.optim.Rprop, "rprop")


class Adafactor(PatchedStep, torch.optim.Adafactor):
    """torch.optim.Adafactor with GC."""

    step = patched_step(torch.optim.Adafactor, "adafactor")
