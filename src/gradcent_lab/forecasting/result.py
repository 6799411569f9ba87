"""The result of a forecast: per layer, in total, and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gradcent import calibration
from gradcent_lab.forecasting.unseen import unseen_sentence


@dataclass(frozen=True)
class LayerForecast:
    """One weight: the share of its gradient that GC would remove, and why.

    removed, removed_std: share of the gradient's energy, mean and spread over seeds.
    energy: the layer's share of the whole gradient's energy.
    level: the share of its inputs' energy along 1; None where the example does not reach it.
    """

    name: str
    module: str
    role: str | None
    level: float | None
    removed: float
    removed_std: float
    energy: float


@dataclass(frozen=True)
class Forecast:
    """What the first steps without GC say about the effect of GC.

    removed, removed_std: share of the gradient's energy that GC removes, mean and spread over seeds.
    explained: share of the target that the mean of the input explains; None where that has no meaning.
    unseen: what the experiment has that no calibration task has.
    curvature: λmax(H) / λmax(PHP), if it was asked for; `curvature_note` says why it is missing.
    """

    name: str
    removed: float
    removed_std: float
    explained: float | None
    layers: tuple[LayerForecast, ...]
    steps: int
    seeds: int
    centralized: str
    unseen: tuple[str, ...] = ()
    curvature: float | None = None
    curvature_note: str = ""

    def sentence(self) -> str:
        """Return the forecast in a few sentences, never more certain than the calibration."""
        parts = (calibration.sentence(self.removed, self.explained), unseen_sentence(self.unseen))
        return " ".join(part for part in parts if part)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "sentence": self.sentence()}
