"""Fair tuning: every arm gets the same grid, seeds and held-out training data, and keeps its own best values.

The comparison that follows runs best against best on fresh seeds and the evaluation data, which tuning never saw.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradcent_lab.errors import UserError
from gradcent_lab.store.records import RunRecord

Values = tuple[tuple[str, float], ...]  # one grid point: (("lr", 0.1), ("weight_decay", 0.0))


@dataclass(frozen=True)
class GridPoint:
    """The held-out results of one arm at one grid point; diverged runs are counted, not averaged."""

    values: Values
    results: tuple[float, ...]
    diverged: int = 0

    @property
    def mean(self) -> float:
        """Mean over the tuning seeds; NaN where any run diverged, so that the point cannot be chosen."""
        return math.nan if self.diverged or not self.results else statistics.fmean(self.results)


@dataclass(frozen=True)
class TunedArm:
    """One arm's grid and the point chosen for it."""

    arm: str
    points: tuple[GridPoint, ...]
    higher_is_better: bool

    @property
    def best(self) -> GridPoint:
        """The point with the best held-out mean; the first of equal ones."""
        finite = [point for point in self.points if math.isfinite(point.mean)]
        if not finite:
            raise UserError(f"--tune: every run of arm {self.arm} diverged: give smaller values")
        sign = 1.0 if self.higher_is_better else -1.0
        return max(finite, key=lambda point: sign * point.mean)

    def good(self, margin: float) -> tuple[GridPoint, ...]:
        """The points whose mean is within `margin` of the arm's best."""
        best = self.best.mean
        return tuple(p for p in self.points if math.isfinite(p.mean) and abs(p.mean - best) <= margin)

    def good_range(self, name: str, margin: float) -> tuple[float, float]:
        """The smallest and largest value of one name among the good points."""
        values = [dict(point.values)[name] for point in self.good(margin)]
        return min(values), max(values)

    def at_edge(self) -> tuple[str, ...]:
        """The names whose chosen value lies at an end of the grid, where a better one may lie outside."""
        chosen = dict(self.best.values)
        edges = []
        for name, value in chosen.items():
            tried = sorted({dict(point.values)[name] for point in self.points})
            if len(tried) > 1 and value in (tried[0], tried[-1]):
                edges.append(name)
        return tuple(edges)


def tuned_arms(
    arms: Sequence[str], points: Sequence[Values], runs: Sequence[tuple[str, Values, RunRecord]]
) -> list[TunedArm]:
    """Group tuning runs, each given with its arm and its grid point, into one result per arm."""
    results: dict[tuple[str, Values], list[float]] = {}
    diverged: dict[tuple[str, Values], int] = {}
    for arm, values, record in runs:
        if record.diverged:
            diverged[arm, values] = diverged.get((arm, values), 0) + 1
        else:
            results.setdefault((arm, values), []).append(record.last)
    higher = runs[0][2].higher_is_better
    return [
        TunedArm(
            arm,
            tuple(
                GridPoint(values, tuple(results.get((arm, values), ())), diverged.get((arm, values), 0))
                for values in points
            ),
            higher,
        )
        for arm in arms
    ]


def parse_grid(options: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Read `--tune name=v1,v2,…` options.

    >>> parse_grid(["lr=0.1,0.3", "weight_decay=0,5e-4"])
    {'lr': (0.1, 0.3), 'weight_decay': (0.0, 0.0005)}
    """
    grid: dict[str, tuple[float, ...]] = {}
    for option in options:
        name, equals, text = option.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UserError(f"--tune {option}: write name=value,value, for example --tune lr=0.03,0.1,0.3")
        if name in grid:
            raise UserError(f"--tune {name} is given twice: list all its values in one option")
        try:
            values = tuple(float(part) for part in text.split(",") if part.strip())
        except ValueError:
            raise UserError(f"--tune {option}: the values must be numbers separated by commas") from None
        if not values:
            raise UserError(f"--tune {name}: the grid is empty; write for example --tune {name}=0.03,0.1,0.3")
        if not all(math.isfinite(value) for value in values):
            raise UserError(f"--tune {option}: the values must be finite")
        if len(set(values)) < len(values):
            raise UserError(f"--tune {option}: a value is listed twice")
        grid[name] = values
    return grid


def grid_points(grid: Mapping[str, Sequence[float]]) -> list[Values]:
    """Return every combination of the grid's values.

    >>> grid_points({"lr": (0.1, 0.3)})
    [(('lr', 0.1),), (('lr', 0.3),)]
    """
    names = list(grid)
    return [tuple(zip(names, point, strict=True)) for point in itertools.product(*grid.values())]


def describe_values(values: Values) -> str:
    """Return a grid point in words.

    >>> describe_values((("lr", 0.1), ("weight_decay", 0.0005)))
    'lr 0.1, weight_decay 0.0005'
    """
    return ", ".join(f"{name} {value:g}" for name, value in values)
