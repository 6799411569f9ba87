"""The layouts of an optimizer's lists, remembered from one step to the next."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..attachment import Attachment
from ..layout import Layout

Shapes = tuple[tuple[int, int, int, int] | None, ...]

# For each attachment, the layouts of the lists it was last asked about: the plan (which is exchanged,
# not edited, when a param group is added), the parameters, their layouts, and those as plain numbers.
_Known = tuple[Any, list[Tensor], list[Layout | None], Shapes]
_known: weakref.WeakKeyDictionary[Attachment, dict[int, _Known]] = weakref.WeakKeyDictionary()


def planned(attachment: Attachment, parameters: Sequence[Tensor]) -> tuple[list[Layout | None], Shapes]:
    """Return the parameters' layouts, and the same as plain numbers for the compiler."""
    known = _known.setdefault(attachment, {})
    at = id(parameters[0]) if parameters else 0
    found = known.get(at)
    if (
        found is None
        or found[0] is not attachment.plan
        or len(found[1]) != len(parameters)
        or not all(map(operator.is_, found[1], parameters))
    ):
        layouts = attachment.layouts(parameters)
        shapes = tuple(None if layout is None else layout.shape for layout in layouts)
        found = known[at] = (attachment.plan, list(parameters), layouts, shapes)
    return found[2], found[3]
