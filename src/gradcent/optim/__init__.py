"""Drop-in optimizers: torch's signatures plus GC's few options.

>>> model = torch.nn.Linear(3, 2)
>>> optimizer = SGD(model.parameters(), lr=0.1, model=model)
"""

import torch

from .adagrad import Adagrad
from .adam import Adam
from .adamw import AdamW
from .lbfgs import LBFGS
from .others import ASGD, Adadelta, Adafactor, Adamax, NAdam, RAdam, RMSprop, Rprop
from .sgd import SGD
from .sgdw import SGDW

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "SGDW",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
]

if hasattr(torch.optim, "Muon"):
    from .muon import Muon

    __all__ += ["Muon"]
