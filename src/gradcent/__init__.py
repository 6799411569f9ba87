"""Gradient centralization for every layer and every PyTorch optimizer."""

from .layout import Layout
from .operator import centralize, centralize_
from .plan import Plan, explain
from .rules import register

__all__ = ["Layout", "Plan", "centralize", "centralize_", "explain", "register"]
