"""The user's overrides: layouts by name pattern or module type, which decide before every rule."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..layout import LAYOUT_NAMES, Layout, layout_named
from .entry import Reason, ReasonCode
from .parameter import Parameter, Resolver, Use

Override = Layout | str | None | Callable[[tuple[int, ...]], Layout]


class OverrideTable:
    """The user's overrides by name pattern or module type; the first that matches a parameter decides."""

    def __init__(self, overrides: object, module_base: type | None) -> None:
        if overrides is not None and not isinstance(overrides, Mapping):
            raise TypeError(
                "overrides must be a dict from name pattern or module type to layout, got "
                f"{type(overrides).__name__}"
            )
        self.values: Mapping[Any, Override] = overrides or {}
        for key in self.values:
            is_module_type = (
                module_base is not None and isinstance(key, type) and issubclass(key, module_base)
            )
            if not isinstance(key, str) and not is_module_type:
                raise TypeError(f"an override is for a name pattern or a module type, got {key!r}")
        self.used, self.shadowed = set[Any](), set[Any]()

    def find(self, parameter: Parameter) -> str | type | None:
        """Return the key of the override that decides for a parameter, None if there is none."""
        hits = [
            key for key in self.values if any(_matches(key, use, parameter.shape) for use in parameter.uses)
        ]
        self.used.update(hits[:1])
        self.shadowed.update(hits[1:])
        return hits[0] if hits else None

    def apply(self, key: str | type, parameter: Parameter) -> tuple[Layout | None, Reason]:
        """Return the layout that an override gives a parameter (None: left alone), and the reason."""
        value, label, shape = self.values[key], _label(key), parameter.shape
        if value is None:
            return None, Reason(ReasonCode.LEFT_BY_OVERRIDE, f"left alone by override {label}")
        where = f"override {label} for parameter {parameter.name}"
        try:
            layout: Any = layout_named(value, shape) if isinstance(value, str) else value
            if callable(layout):
                layout = layout(shape)
            if isinstance(layout, Layout):
                layout.split(shape)
        except ValueError as error:
            raise ValueError(f"{where} of shape {shape}: {error}") from None
        if not isinstance(layout, Layout):
            what = f"its function returned {type(layout).__name__}" if callable(value) else repr(value)
            raise TypeError(
                f"{where}: {what} is no layout; give a Layout, the name of one ({', '.join(LAYOUT_NAMES)}), "
                "a function from the shape to a Layout, or None to leave it alone"
            )
        return layout, Reason(ReasonCode.OVERRIDE, f"override {label}")

    def require_all_used(self, parameters: Sequence[Parameter], resolver: Resolver) -> None:
        """Raise if an override decides nothing: its pattern is likely misspelt."""
        for key in self.values:
            if key not in self.used:
                raise ValueError(self._why_unused(key, parameters, resolver))

    def _why_unused(self, key: str | type, parameters: Sequence[Parameter], resolver: Resolver) -> str:
        if key in self.shadowed:
            return f"override {_label(key)} is never used: an earlier one matches all its parameters; put it first"
        if not isinstance(key, str):
            present = resolver.contains(key)
            why = "has no weights of its own: name its parts" if present else "is not in the model"
            return f"override for module type {key.__name__} matches nothing: it {why}"
        names = [use.name for parameter in parameters for use in parameter.uses]
        similar = difflib.get_close_matches(key, names, n=3, cutoff=0.3) or names[:3]
        return f"override pattern {key!r} matches no {resolver.noun}; names look like {', '.join(similar)}"


def _matches(key: str | type, use: Use, shape: tuple[int, ...]) -> bool:
    """Whether an override applies to a use. A module type stands for its weights, not for its biases."""
    if isinstance(key, str):
        return fnmatch.fnmatchcase(use.name, key)
    return isinstance(use.owner, key) and len(shape) >= 2


def _label(key: str | type) -> str:
    return repr(key) if isinstance(key, str) else key.__name__
