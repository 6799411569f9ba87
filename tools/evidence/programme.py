"""The experiments of results/PROTOCOL.md: which study answers which question, and what the paper claims beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gradcent_lab import recipes
from gradcent_lab.analysis import paper_claims
from gradcent_lab.analysis.findings import Finding, findings
from gradcent_lab.analysis.tuning import TunedArm, grid_points, tuned_arms
from gradcent_lab.experiment.study import Study, tasks_of
from gradcent_lab.recipes import tuned
from gradcent_lab.store import records as store
from gradcent_lab.store.records import RunRecord


@dataclass(frozen=True)
class Experiment:
    """One line of the protocol's table."""

    letter: str
    recipe: str
    scale: str
    title: str
    question: str
    # (cell, arm) → the table and the column of the paper's nearest claim
    claims: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)


PROGRAMME = (
    Experiment(
        "F", "controls", "mini", "Controls, ResNet-8 BN, lr 0.3", "is it the mean, or only step size or rank?"
    ),
    Experiment(
        "D",
        "norms",
        "mini",
        "Norms, ResNet-8, tuned",
        "are the gains largest with GN, as in Table 5 and figures 5 and 6?",
        {("BN", "all"): (5, "R50BN"), ("GN", "all"): (5, "R50GN")},
    ),
    Experiment(
        "A",
        "cifar100-tuned",
        "mini",
        "Half of CIFAR-100, ResNet-8, tuned",
        "does a tuned baseline catch up?",
        {("R8", "all"): (1, "R18")},
    ),
    Experiment(
        "B",
        "few-images",
        "mini",
        "5,000 images, ResNet-18, tuned",
        "does GC close the gap between training and test accuracy where images are few?",
    ),
    Experiment(
        "H",
        "characters",
        "mini",
        "Character transformer, AdamW, tuned",
        "does GC do anything behind LayerNorm, which removes the mean?",
    ),
    Experiment(
        "H",
        "unet",
        "mini",
        "U-Net on Penn-Fudan, IoU, lr 0.1",
        "does GC help with transposed convolutions, BatchNorm re-estimated?",
    ),
    Experiment(
        "E",
        "cub-tuned",
        "mini",
        "CUB-200, pretrained ResNet-18, tuned",
        "does GC help fine-tuning, as in Table 7 and figure 7?",
        {("CUB-200-2011", "all"): (7, "CUB-200-2011")},
    ),
    Experiment(
        "C",
        "optimizers-tuned",
        "mini",
        "Optimizers, ResNet-8, tuned",
        "which optimizers does GC help (Table 2, Lion, Muon)?",
        {(name, "all"): (2, name) for name in ("Adam", "Adagrad", "SGDW", "AdamW")},
    ),
    Experiment(
        "–",
        "cifar100-small",
        "small",
        "A fifth of CIFAR-100, ResNet-8, lr 0.1",
        "does GC help at the paper's learning rate (an earlier study, not tuned)?",
        {("R8", "conv"): (1, "R18")},
    ),
)
ARMS = {
    "all": "GC in all layers",
    "on": "GC in all layers",
    "conv": "GC in convolutions",
    "conv + FC": "GC in all layers",
    "hidden": "GC in hidden layers only",
    "input": "GC in the input layer only",
    "update": "GC at the update",
    "wrong axis": "control: GC along the wrong axis",
    "rescaled": "control: gradient rescaled",
    "random direction": "control: random direction removed",
    "centred images": "control: images centred, no GC",
}
CONTROLS = ("rescaled", "random direction", "centred images", "wrong axis")
IN_ALL_LAYERS = ("all", "on", "conv + FC")  # the arms that an experiment is about


@dataclass(frozen=True)
class Results:
    """The committed runs of one experiment."""

    experiment: Experiment
    root: Path

    @cached_property
    def study(self) -> Study:
        """The study as the recipe describes it."""
        return recipes.get(self.experiment.recipe).study(self.experiment.scale)

    @cached_property
    def records(self) -> list[RunRecord]:
        """The finished runs of the comparison."""
        return self._load(self.study.name)

    @cached_property
    def tuning_records(self) -> list[RunRecord]:
        """The finished runs of the grid."""
        return self._tuning_runs(tuned.tuning_study)

    @cached_property
    def beyond_records(self) -> list[RunRecord]:
        """The finished runs at values beyond the grid."""
        return self._tuning_runs(tuned.beyond_study)

    @cached_property
    def findings(self) -> list[Finding]:
        """Every arm of every cell against the arm without GC, in the order of the study."""
        order = [arm.name for arm in self.study.arms]
        cells = [cell.name for cell in self.study.cells]
        result = [f for f in findings(self.records) if f.comparison]
        return sorted(result, key=lambda f: (cells.index(f.cell), order.index(f.arm)))

    def finding(self, arm: str, cell: str | None = None) -> Finding | None:
        """The finding of one arm; None where no pair is finished."""
        return next((f for f in self.findings if f.arm == arm and cell in (None, f.cell)), None)

    def main(self, cell: str) -> Finding | None:
        """The finding of the arm with GC in all layers; None where no pair is finished."""
        return next((f for f in self.findings if f.cell == cell and f.arm in IN_ALL_LAYERS), None)

    def claim(self, finding: Finding) -> float | None:
        """The paper's gain in points for its nearest claim; positive is better."""
        place = self.experiment.claims.get((finding.cell, finding.arm))
        claim = paper_claims.find(*place) if place else None
        if claim is None:
            return None
        return claim.difference if claim.info.higher_is_better else -claim.difference

    def planned_pairs(self, arm: str) -> int:
        """The number of pairs that the protocol fixes for an arm."""
        tuning = self.study.scale.tuning
        if tuning is not None and arm in tuning.follow:
            return len(self.study.seeds[: tuning.follow_seeds])
        return len(self.study.seeds)

    @cached_property
    def planned_runs(self) -> tuple[int, int]:
        """Planned runs of the grid and of the comparison."""
        if self.study.scale.tuning is None:
            return 0, len(tasks_of(self.study, None))
        arms = sum(self.planned_pairs(arm.name) for arm in self.study.arms)
        return len(tasks_of(tuned.tuning_study(self.study), None)), arms * len(self.study.cells)

    @property
    def complete(self) -> bool:
        """Whether every planned run is there."""
        return (len(self.tuning_records), len(self.records)) == self.planned_runs

    def tuned_arms(self, cell: str) -> list[TunedArm]:
        """The held-out results of a cell, as far as its tuning runs are finished; empty if there are none."""
        tuning = self.study.scale.tuning
        if tuning is None:
            return []
        grid = next(tuning.grid_of(c) for c in self.study.cells if c.name == cell)
        return self._arms(cell, grid, self.tuning_records)

    def beyond_arms(self, cell: str) -> list[TunedArm]:
        """The held-out results of a cell beyond the grid; empty if there are none."""
        tuning = self.study.scale.tuning
        return [] if tuning is None else self._arms(cell, tuning.beyond, self.beyond_records)

    @property
    def planned_beyond(self) -> int:
        """Planned runs beyond the grid."""
        if self.study.scale.tuning is None:
            return 0
        return len(tasks_of(tuned.beyond_study(self.study), None))

    def _arms(self, cell: str, grid: tuned.Grid, records: list[RunRecord]) -> list[TunedArm]:
        runs = []
        for record in records:
            if record.cell.startswith(f"{cell}, "):
                options = record.config["settings"]["optimizer"]
                runs.append((record.arm, tuple((name, options[name]) for name in grid), record))
        there = {arm for arm, _, _ in runs}
        order = [arm.name for arm in self.study.arms if arm.name in there]
        return tuned_arms(order, grid_points(grid), runs) if runs else []

    def _tuning_runs(self, part: Callable[[Study], Study]) -> list[RunRecord]:
        if self.study.scale.tuning is None:
            return []
        cells = {cell.name for cell in part(self.study).cells}
        return [r for r in self._load(tuned.tuning_name(self.study.name)) if r.cell in cells]

    def _load(self, name: str) -> list[RunRecord]:
        folder = self.root / name
        found = store.load(self.root, name) if folder.is_dir() else []
        return [record for record in found if record.scale == self.experiment.scale]


def load(root: Path) -> list[Results]:
    """Return the results of every experiment, in the order of the protocol."""
    return [Results(experiment, root) for experiment in PROGRAMME]
