"""What GC does to a model's gradients: how much it removes, and whether weight sums stay where they were.

Two lines in a training loop, one of them before it:

    monitor = gradcent.Monitor(model)
    …
    loss.backward(); monitor.update(); optimizer.step()

and `print(monitor)` at the end. The figures are those of Fig. 3 and 4 of the paper and of Theorem 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from . import calibration
from .functional import centralize
from .layout import Layout
from .operator import vector_means
from .plan import Layers, Overrides, Plan
from .plan.planner import MIN_LENGTH


@dataclass(frozen=True, slots=True)
class Reading:
    """One parameter's gradient at one step, before and after centralizing."""

    step: int
    name: str
    norm_before: float
    norm_after: float
    max_before: float
    max_after: float
    removed: float  # share of the gradient's energy ‖g‖² that centralizing removes
    energy: float


class Monitor:
    """Reads the gradients every so many steps; cheap enough to leave on.

    Args:
        model: the model that is trained.
        every: read one step in this many; the others cost nothing.
        callback: called with the list of readings of each step that is read, e.g. to log them.
        keep: how many of the newest readings stay in `readings` (about 300 bytes each). `removed`, `verdict` and the
            table are running statistics over all readings.
        plan, layers, overrides, min_length: as in :func:`gradcent.attach`.

    >>> model = nn.Linear(3, 2)
    >>> monitor = gradcent.Monitor(model, every=1)
    >>> model(torch.ones(4, 3)).sum().backward()  # constant inputs: every gradient is its own mean
    >>> _ = monitor.update()
    >>> round(monitor.removed, 6)
    1.0
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        *,
        every: int = 50,
        callback: Callable[[list[Reading]], None] | None = None,
        keep: int = 10_000,
        plan: Plan | None = None,
        layers: Layers = "all",
        overrides: Overrides | None = None,
        min_length: int = MIN_LENGTH,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number, 1 or more, got {every}")
        if not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep must be a whole number, 1 or more, got {keep}")
        self.plan = Plan.chosen(model, plan, layers=layers, overrides=overrides, min_length=min_length)
        self.plan.require_something()
        self.every, self.callback, self.keep = every, callback, keep
        self.steps = 0
        self.readings: list[Reading] = []
        self._statistics: dict[str, _Statistics] = {}
        self._steps_read = 0
        self._step_shares = _StepShares()
        self._start = {
            entry.name: vector_means(_whole(parameter), entry.layout)
            for parameter, entry in self.plan.named()
            if entry.layout is not None
        }

    @torch.no_grad()
    def update(self) -> list[Reading]:
        """Read the gradients that are there now (call between backward and step)."""
        self.steps += 1
        if (self.steps - 1) % self.every:
            return []
        named = [
            (entry.name, _figures(_whole(parameter.grad), entry.layout))
            for parameter, entry in self.plan.named()
            if entry.layout is not None and parameter.grad is not None and not parameter.grad.is_sparse
        ]
        if not named:
            raise ValueError("no gradients to read: call monitor.update() between backward() and step()")
        figures = torch.stack([figure.cpu() for _, figure in named]).tolist()
        readings = [
            Reading(self.steps - 1, name, *values) for (name, _), values in zip(named, figures, strict=True)
        ]
        self._steps_read += 1
        self._step_shares.add(readings)
        for reading in readings:
            self._statistics.setdefault(reading.name, _Statistics()).add(reading)
        self.readings += readings
        del self.readings[: -self.keep]
        if self.callback is not None:
            self.callback(readings)
        return readings

    def watch(self, optimizer: torch.optim.Optimizer) -> Any:
        """Update by itself before each step of the optimizer; returns a handle with `remove()`."""

        def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if not callable(closure):
                self.update()
                return None

            def wrapped() -> Any:
                result = closure()
                self.update()
                return result

            return (
                ((args[0], wrapped, *args[2:]), kwargs)
                if len(args) > 1
                else (args, {**kwargs, "closure": wrapped})
            )

        handle = optimizer.register_step_pre_hook(before)
        # First of all hooks, so that gradients are read before anything centralizes them in place.
        hooks: Any = optimizer._optimizer_step_pre_hooks
        hooks.move_to_end(handle.id, last=False)
        return handle

    @torch.no_grad()
    def drift(self) -> dict[str, float]:
        """Largest change of any weight vector's sum since the monitor was made, per parameter."""
        return {
            entry.name: float(
                (vector_means(_whole(parameter), entry.layout) - self._start[entry.name]).abs().max()
                * entry.layout.length
            )
            for parameter, entry in self.plan.named()
            if entry.layout is not None
        }

    @property
    def removed(self) -> float:
        """Share of the whole gradient's energy that centralizing removed, over all finite readings."""
        energy = sum(each.energy for each in self._statistics.values())
        removed = sum(each.removed_energy for each in self._statistics.values())
        return removed / energy if energy else 0.0

    def forecast(self) -> str:
        """Return what the calibration says about this model: the sentence of `gradcent forecast`; "" if unknown.

        It reads the share removed as the calibration does, as the mean over steps of each step's share. The
        calibration read the first 60 steps without GC, so other steps are a hint only.
        """
        share = self._step_shares.mean
        return "" if share is None else calibration.sentence(min(share, 1.0))

    def rows(self) -> list[dict[str, Any]]:
        """Return the readings that are kept as plain dicts."""
        return [asdict(reading) for reading in self.readings]

    def verdict(self) -> str:
        """Say in one line what centralizing means for this model's gradients."""
        statistics = self._statistics.values()
        count, bad = sum(each.count for each in statistics), sum(each.bad for each in statistics)
        if not count:
            return "nothing read yet: call monitor.update() between backward() and step()"
        left_out = f" ({bad} of {count} readings hold nan or inf and do not count)" if bad else ""
        if bad == count:
            return "the gradients that were read hold nan or inf: nothing can be said"
        if not any(each.energy for each in statistics):
            return f"the gradients that were read are all 0: nothing can be said{left_out}"
        percent = 100 * self.removed
        share = f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
        removes = f"here GC removes {share} of the gradient's energy{left_out}"
        if self.removed < 0.005:
            return f"{removes}: it does next to nothing for this model"
        if self.removed < 0.05:
            return f"{removes}: expect a small effect, if any"
        return f"{removes}: enough to matter; compare to know whether it helps"

    def __str__(self) -> str:
        drift = self.drift()
        width = max((len(name) for name in self._statistics), default=9)
        lines = [
            f"{'parameter':<{width}}  {'‖g‖':>9}  {'‖Φ(g)‖':>9}  {'max|g|':>9}  {'max|Φ|':>9}  removed  drift of sums"
        ]
        for name, statistics in self._statistics.items():
            mean = [total / statistics.count for total in statistics.totals]
            lines.append(
                f"{name:<{width}}  {mean[0]:9.2e}  {mean[1]:9.2e}  {mean[2]:9.2e}  {mean[3]:9.2e}  "
                f"{100 * mean[4]:5.1f} %  {drift[name]:.1e}"
            )
        steps = f"means over {self._steps_read} of {self.steps} steps"
        return "\n".join(line for line in (*lines, steps, self.verdict(), self.forecast()) if line)


@dataclass(slots=True)
class _StepShares:
    """The share removed in each step that was read; steps count equally, because gradients shrink during training."""

    total: float = 0.0
    count: int = 0

    def add(self, readings: Sequence[Reading]) -> None:
        """Add one step; a step with nan, inf or no gradient at all is left out."""
        energy = sum(reading.energy for reading in readings)
        if 0 < energy < math.inf:
            self.total += sum(reading.removed * reading.energy for reading in readings) / energy
            self.count += 1

    @property
    def mean(self) -> float | None:
        """The mean share, or None if no step counts."""
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class _Statistics:
    """Running statistics of one parameter's readings: they take the same memory after any number of steps."""

    count: int = 0
    bad: int = 0  # readings with nan or inf
    energy: float = 0.0  # of the finite readings
    removed_energy: float = 0.0
    totals: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, reading: Reading) -> None:
        """Add one reading."""
        self.count += 1
        if math.isfinite(reading.energy):
            self.energy += reading.energy
            self.removed_energy += reading.removed * reading.energy
        else:
            self.bad += 1
        values = (
            reading.norm_before,
            reading.norm_after,
            reading.max_before,
            reading.max_after,
            reading.removed,
        )
        self.totals = [total + value for total, value in zip(self.totals, values, strict=True)]


def initial_means(
    model: nn.Module, *, layers: Layers = "conv", overrides: Overrides | None = None
) -> dict[str, Tensor]:
    """Return the mean of every weight vector of a model, per parameter: Fig. 3 when taken before training.

    >>> means = gradcent.diagnostics.initial_means(nn.Conv2d(3, 8, 3))
    >>> {name: tuple(values.shape) for name, values in means.items()}
    {'weight': (8,)}
    """
    plan = Plan.of(model, layers=layers, overrides=overrides)
    plan.require_something()
    return {
        entry.name: vector_means(parameter.detach(), entry.layout).flatten()
        for parameter, entry in plan.named()
        if entry.layout is not None
    }


def _figures(gradient: Tensor, layout: Layout) -> Tensor:
    """norm and largest value before and after, share removed, energy; one small tensor, no waiting."""
    rest = centralize(gradient, layout)
    norms = [torch.linalg.vector_norm(each, dtype=_real(each)).double() for each in (gradient, rest)]
    largest = [each.abs().max().double() for each in (gradient, rest)]
    energy = norms[0] ** 2
    removed = torch.where(energy == 0, 0.0, 1 - norms[1] ** 2 / energy).clamp(min=0.0)  # nan stays nan
    return torch.stack([*norms, *largest, removed, energy])


def _real(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32


def _whole(tensor: Tensor | None) -> Tensor:
    """The whole of a sharded tensor (every worker must ask), a plain one as it is."""
    if tensor is None:
        raise ValueError("no gradient")
    full = getattr(tensor, "full_tensor", None)
    return tensor.detach() if full is None else full().detach()
