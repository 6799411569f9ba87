"""The lab: does gradient centralization help, on the paper's tasks and on yours?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradcent_lab.forecasting.measure import forecast

__all__ = ["forecast"]


def __getattr__(name: str) -> Any:
    """Import `forecast` when it is used, so that `gradcent --help` does not import torch."""
    if name == "forecast":
        from gradcent_lab.forecasting.measure import forecast

        return forecast
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
