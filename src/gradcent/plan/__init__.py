"""The plan of a model: which parameters consist of weight vectors, and why the others do not."""

from .entry import Entry, Reason, ReasonCode
from .plan import Overrides, Plan, explain, models_of
from .planner import Layers, Override

__all__ = [
    "Entry",
    "Layers",
    "Override",
    "Overrides",
    "Plan",
    "Reason",
    "ReasonCode",
    "explain",
    "models_of",
]
