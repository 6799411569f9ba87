"""The plan of a model: which parameters consist of weight vectors, and why the others do not."""

from .plan import SWITCHED_OFF, Entry, Layers, Override, Overrides, Plan, explain, models_of

__all__ = ["SWITCHED_OFF", "Entry", "Layers", "Override", "Overrides", "Plan", "explain", "models_of"]
