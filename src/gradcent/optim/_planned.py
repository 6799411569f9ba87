"""The layouts of an optimizer's lists, remembered from one step to the next.

They are kept in the attachment itself, where the garbage collector sees them: parameters may know their
optimizer, through a hook or an attribute.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..attachment import Attachment
from ..kernels import native
from ..layout import Layout

Shapes = tuple[tuple[int, int, int, int] | None, ...]


def planned(attachment: Attachment, parameters: Sequence[Tensor]) -> tuple[list[Layout | None], Shapes]:
    """Return the parameters' layouts, and the same as plain numbers for the compiler."""
    # The plan is exchanged, not edited, when a param group is added.
    at = ("list", id(parameters[0]) if parameters else 0)
    found = attachment.remembered.get(at)
    if (
        found is None
        or found[0] is not attachment.plan
        or len(found[1]) != len(parameters)
        or not all(map(operator.is_, found[1], parameters))
    ):
        layouts = attachment.layouts(parameters)
        shapes = tuple(None if layout is None else layout.shape for layout in layouts)
        found = attachment.remembered[at] = (attachment.plan, list(parameters), layouts, shapes)
    return found[2], found[3]


def table(attachment: Attachment, group: int, parameters: list[Tensor], *, anew: bool = False) -> Any:
    """Return the same for the C code that steps a whole group, or None if the plan does not know all parameters.

    That code notices by itself when the group has other parameters: then `anew`.
    """
    at = ("group", group)
    found = attachment.remembered.get(at)
    if anew or found is None or found[0] is not attachment.plan:
        if any(attachment.plan.entry(each) is None for each in parameters):
            return None
        layouts = attachment.layouts(parameters)
        found = attachment.remembered[at] = (attachment.plan, native.table(parameters, layouts))
    return found[1]
