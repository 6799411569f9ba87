"""The layouts of an optimizer's lists, for optim/_torch_step.py until its steps are explicit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..attachment import Attachment
from ..kernels.layout_cache import Shapes
from ..layout import Layout

__all__ = ["Shapes", "planned"]


def planned(attachment: Attachment, parameters: Sequence[Tensor]) -> tuple[list[Layout | None], Shapes]:
    """Return the parameters' layouts, and the same as plain numbers for the compiler."""
    return attachment.cache.lists(attachment, parameters)
