"""Implementations of GC on lists of tensors, and of whole optimizer steps; dispatch.py chooses one."""

from . import foreach, native
from .dispatch import centralize_gradients_, centralized

__all__ = ["centralize_gradients_", "centralized", "foreach", "native"]
