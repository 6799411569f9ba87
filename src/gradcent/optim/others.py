"""The other dense optimizers of torch.optim with GC."""

import torch

from ._torch_step import PatchedStep, patched_step


class RMSprop(PatchedStep, torch.optim.RMSprop):
    """torch.optim.RMSprop with GC.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.RMSprop(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.RMSprop, "rmsprop")


class NAdam(PatchedStep, torch.optim.NAdam):
    """torch.optim.NAdam with GC.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.NAdam(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.NAdam, "nadam")


class RAdam(PatchedStep, torch.optim.RAdam):
    """torch.optim.RAdam with GC.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.RAdam(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.RAdam, "radam")


class Adadelta(PatchedStep, torch.optim.Adadelta):
    """torch.optim.Adadelta with GC.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.Adadelta(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.Adadelta, "adadelta")


class Adamax(PatchedStep, torch.optim.Adamax):
    """torch.optim.Adamax with GC.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.Adamax(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.Adamax, "adamax")


class ASGD(PatchedStep, torch.optim.ASGD):
    """torch.optim.ASGD with GC.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.ASGD(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.ASGD, "asgd")


class Rprop(PatchedStep, torch.optim.Rprop):
    """torch.optim.Rprop with GC: the signs are those of the centralized gradient.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.Rprop(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.Rprop, "rprop")


class Adafactor(PatchedStep, torch.optim.Adafactor):
    """torch.optim.Adafactor with GC.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.Adafactor(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    step = patched_step(torch.optim.Adafactor, "adafactor")
