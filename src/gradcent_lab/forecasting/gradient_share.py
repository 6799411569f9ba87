"""How much of the gradient's energy GC would remove, step by step, in training without GC.

The share of one step is Σ‖g − Φ(g)‖² / Σ‖g‖² over all weight vectors of the plan. Steps count equally, because
gradients shrink during training and the first steps would dominate a sum.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcent.diagnostics import Reading


@dataclass
class GradientShare:
    """Collects the readings of :class:`gradcent.Monitor`, one call per step."""

    steps: list[float] = field(default_factory=list)
    layers: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # (removed, share of energy)

    def add(self, readings: Sequence[Reading]) -> None:
        """Add the readings of one step; a step without any gradient energy is left out."""
        total = sum(reading.energy for reading in readings)
        if not total > 0:
            return
        self.steps.append(sum(reading.removed * reading.energy for reading in readings) / total)
        for reading in readings:
            self.layers.setdefault(reading.name, []).append((reading.removed, reading.energy / total))

    @property
    def mean(self) -> float:
        """The share removed, averaged over the steps."""
        return statistics.fmean(self.steps)

    def layer(self, name: str) -> tuple[float, float]:
        """Return a layer's share removed and its share of the gradient's energy, averaged over the steps."""
        pairs = self.layers[name]
        return statistics.fmean(pair[0] for pair in pairs), statistics.fmean(pair[1] for pair in pairs)
