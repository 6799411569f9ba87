"""Experiment trackers: every one that accelerate offers, by name."""

from __future__ import annotations

from collections.abc import Sequence

from gradcent_lab.errors import UserError


def tracker_names(names: Sequence[str]) -> tuple[str, ...]:
    """Check the trackers: known to accelerate, and installed."""
    if not names:
        return ()
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known = sorted(str(getattr(name, "value", name)) for name in LOGGER_TYPE_TO_CLASS)
    installed = {str(getattr(name, "value", name)) for name in get_available_trackers()}
    for name in names:
        if name not in known:
            raise UserError(f"--track {name}: accelerate has {', '.join(known)}")
        if name not in installed:
            raise UserError(
                f"--track {name} needs a package that is not installed: pip install {name.replace('_', '-')}"
            )
    return tuple(names)
