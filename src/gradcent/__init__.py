"""Gradient centralization for every layer and every PyTorch optimizer.

>>> import torch, gradcent
>>> model = torch.nn.Linear(3, 2)
>>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
>>> optimizer = gradcent.attach(optimizer, model)
"""

from . import optim
from .attach import attach, attached, detach
from .diagnostics import Monitor
from .functional import centralize, centralize_
from .gradient_hooks import attach_to_gradients, centralize_gradients_
from .layout import Layout
from .plan import Plan, explain
from .plan.rules import register, unregister

__version__ = "0.1.0"

__all__ = [
    "Layout",
    "Monitor",
    "Plan",
    "attach",
    "attach_to_gradients",
    "attached",
    "centralize",
    "centralize_",
    "centralize_gradients_",
    "detach",
    "explain",
    "optim",
    "register",
    "unregister",
]
