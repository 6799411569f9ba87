"""Warnings that name the line of the user's code, whichever of gradcent's entry points it calls."""

from __future__ import annotations

import os
import sys
import warnings

import torch

# A trailing separator: a user's package may be called gradcent_models.
_SKIPPED = tuple(os.path.join(os.path.dirname(file), "") for file in (__file__, torch.__file__))


def warn_user(message: str) -> None:
    """Warn at the innermost call that is neither in gradcent nor in torch, which calls hooks and wraps methods.

    A fixed ``stacklevel`` would depend on the entry point, and on Python: before 3.12 a comprehension has a frame.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
