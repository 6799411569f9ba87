"""The layouts of an optimizer's parameter lists, reused across steps.

An attachment owns one cache. The entries refer to the parameters strongly and live in plain dicts, where the
garbage collector sees them: a parameter may refer to its optimizer through a hook or an attribute.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..layout import Layout
from . import native

Shapes = tuple[tuple[int, int, int, int] | None, ...]


class _Planned(Protocol):
    @property
    def plan(self) -> Any: ...

    def layouts(self, params: list[Tensor]) -> list[Layout | None]: ...

    def has_layouts(self, params: list[Tensor]) -> bool: ...


@dataclass(frozen=True, slots=True)
class _ListEntry:
    plan: Any
    params: list[Tensor]
    layouts: list[Layout | None]
    shapes: Shapes


@dataclass(frozen=True, slots=True)
class _GroupEntry:
    plan: Any
    table: native.LayoutTable


class LayoutCache:
    """Layouts by parameter list. An entry is valid for one plan object: plans are replaced, never edited."""

    def __init__(self) -> None:
        self._lists: dict[int, _ListEntry] = {}  # by id of the first parameter, which the entry keeps alive
        self._groups: dict[int, _GroupEntry] = {}
        self._shapes: dict[int, tuple[Any, native.Shapes]] = {}  # by id of a group's parameter list

    def reshaped(self, attachment: _Planned, params: list[Tensor]) -> bool:
        """Whether a parameter of the group may have another shape than in the step before: `p.data` was replaced."""
        entry = self._shapes.get(id(params))
        if entry is not None and entry[0] is attachment.plan and entry[1].unchanged(params):
            return False
        self._shapes[id(params)] = (attachment.plan, native.Shapes(params))
        return True

    def lists(self, attachment: _Planned, params: Sequence[Tensor]) -> tuple[list[Layout | None], Shapes]:
        """Return the layouts of `params`, and the same as plain integers for torch.compile."""
        key = id(params[0]) if params else 0
        entry = self._lists.get(key)
        if (
            entry is None
            or entry.plan is not attachment.plan
            or len(entry.params) != len(params)
            or not all(map(operator.is_, entry.params, params))
        ):
            layouts = attachment.layouts(list(params))
            shapes = tuple(None if layout is None else layout.shape for layout in layouts)
            entry = self._lists[key] = _ListEntry(attachment.plan, list(params), layouts, shapes)
        return entry.layouts, entry.shapes

    def table(
        self, attachment: _Planned, params: list[Tensor], *, rebuild: bool = False
    ) -> native.LayoutTable | None:
        """Return the layouts of a whole param group for `native.step_group`; None if the plan lacks one of them.

        `step_group` itself reports that the group has other parameters than the table: then `rebuild`.
        """
        key = id(params[0]) if params else 0
        entry = self._groups.get(key)
        if rebuild or entry is None or entry.plan is not attachment.plan:
            if not attachment.has_layouts(params):
                return None
            table = native.LayoutTable(params, attachment.layouts(params))
            entry = self._groups[key] = _GroupEntry(attachment.plan, table)
        return entry.table
