"""The plan of a model: which parameters consist of weight vectors, and why the others do not."""

from .entry import Entry, Reason, ReasonCode
from .forward import ExampleForward
from .overrides import Override
from .plan import Overrides, Plan, explain, models_of
from .planner import Layers

__all__ = [
    "Entry",
    "ExampleForward",
    "Layers",
    "Override",
    "Overrides",
    "Plan",
    "Reason",
    "ReasonCode",
    "explain",
    "models_of",
]
