"""The experiments of results/PROTOCOL.md: which study answers which question, and what the paper claims beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gradcent_lab import recipes
from gradcent_lab.analysis import paper_claims
from gradcent_lab.analysis.findings import Finding, Rules, findings
from gradcent_lab.analysis.statistics import Comparison, compare
from gradcent_lab.analysis.tuning import TunedArm, grid_points, tuned_arms
from gradcent_lab.experiment.run_config import OFF, Arm
from gradcent_lab.experiment.study import Cell, Study, tasks_of
from gradcent_lab.recipes import tuned
from gradcent_lab.store import records as store
from gradcent_lab.store.records import RunRecord


@dataclass(frozen=True)
class Nearest:
    """The claim of the paper that is nearest to a comparison: its table and column, and what was trained there."""

    table: int
    column: str
    words: str


@dataclass(frozen=True)
class Experiment:
    """One line of the protocol's table.

    title: what is trained, in words; `cells` gives the titles of single cells where there are several.
    subject: the group under which the short answer counts it; empty where its runs are counted elsewhere.
    claims: (cell, arm) → the paper's nearest claim.
    """

    letter: str
    recipe: str
    scale: str
    title: str
    question: str
    subject: str = ""
    cells: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], Nearest] = field(default_factory=dict)


SHORT_TRAINING = "Small convolutional networks, short training with SGD"
OPTIMIZERS = "The same with other optimizers"
FINE_TUNING = "Fine-tuning a pretrained convolutional network"
TRANSFORMER = "A transformer with LayerNorm, trained with AdamW"
SEGMENTATION = "Segmentation with transposed convolutions"
SUBJECTS = (SHORT_TRAINING, OPTIMIZERS, FINE_TUNING, TRANSFORMER, SEGMENTATION)
TABLE_1 = Nearest(1, "R18", "Table 1, ResNet-18, CIFAR-100, 200 epochs")
PROGRAMME = (
    Experiment(
        "A",
        "cifar100-tuned",
        "mini",
        "ResNet-8, half of CIFAR-100, tuned",
        "Does a tuned baseline catch up?",
        SHORT_TRAINING,
        claims={("R8", "all"): TABLE_1},
    ),
    Experiment(
        "B",
        "few-images",
        "mini",
        "ResNet-18, 5,000 images, tuned",
        "Does GC close the gap between training and test accuracy where images are few?",
        SHORT_TRAINING,
    ),
    Experiment(
        "D",
        "norms",
        "mini",
        "ResNet-8 with BN, GN or weight standardization, tuned",
        "Are the gains largest with GN, as in Table 5 and figures 5 and 6?",
        SHORT_TRAINING,
        {
            "BN": "ResNet-8 with BN, tuned",
            "GN": "ResNet-8 with GN of 32 groups, tuned",
            "GN (8 groups)": "ResNet-8 with GN of 8 groups, tuned",
            "BN+WS": "ResNet-8 with BN and WS, tuned",
        },
        {
            ("BN", "all"): Nearest(5, "R50BN", "Table 5, ResNet-50, ImageNet"),
            ("GN (8 groups)", "all"): Nearest(5, "R50GN", "Table 5, ResNet-50 with GN, ImageNet"),
        },
    ),
    Experiment(
        "C",
        "optimizers-tuned",
        "mini",
        "ResNet-8, other optimizers, tuned",
        "Which optimizers does GC help, and should it act on the gradient or on the update?",
        OPTIMIZERS,
        {name: f"ResNet-8, {name}, tuned" for name in ("Adam", "Adagrad", "SGDW", "AdamW", "Lion", "Muon")},
        {
            (name, "all"): Nearest(2, name, f"Table 2, ResNet-50, CIFAR-100, {name}")
            for name in ("Adam", "Adagrad", "SGDW", "AdamW")
        },
    ),
    Experiment(
        "E",
        "cub-tuned",
        "mini",
        "Fine-tuning ResNet-18 on CUB-200, tuned",
        "Does GC help fine-tuning, as in Table 7 and figure 7?",
        FINE_TUNING,
        claims={("CUB-200-2011", "all"): Nearest(7, "CUB-200-2011", "Table 7, ResNet-50, CUB-200")},
    ),
    Experiment(
        "H",
        "characters",
        "mini",
        "Character transformer, AdamW, tuned",
        "Does GC do anything in a pre-LN transformer, where LayerNorm removes most means?",
        TRANSFORMER,
    ),
    Experiment(
        "H",
        "unet",
        "mini",
        "U-Net on Penn-Fudan, lr 0.1",
        "Does GC help with transposed convolutions, and does the axis matter?",
        SEGMENTATION,
    ),
    Experiment(
        "F",
        "controls",
        "mini",
        "ResNet-8 with BN, lr 0.3 in all arms",
        "Is it the mean, or only the step size or the loss of one direction?",
    ),
    Experiment(
        "–",
        "cifar100-small",
        "small",
        "ResNet-8, a fifth of CIFAR-100, lr 0.1",
        "Does GC help at the paper's learning rate (an earlier study, not tuned)?",
        SHORT_TRAINING,
        claims={("R8", "conv + FC"): TABLE_1},
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
        """Every arm of every cell against the arm without GC, in the order of the study; those with diverged pairs too.

        The 5 % of a cell are shared among its planned arms, so that an interval does not change when another arm begins.
        """
        result = []
        for cell in self.study.cells:
            arms = self.arms_with_gc(cell.name)
            runs = [record for record in self.records if record.cell == cell.name]
            found = {f.arm: f for f in findings(runs, rules=Rules(comparisons=len(arms)))}
            result += [found[arm] for arm in arms if arm in found and found[arm].divergence.pairs]
        return result

    def finding(self, arm: str, cell: str | None = None) -> Finding | None:
        """The finding of one arm; None where no pair is finished."""
        return next((f for f in self.findings if f.arm == arm and cell in (None, f.cell)), None)

    def main(self, cell: str) -> Finding | None:
        """The finding of the arm with GC in all layers; None where no pair is finished."""
        return next((f for f in self.findings if f.cell == cell and f.arm in IN_ALL_LAYERS), None)

    def main_findings(self) -> list[Finding]:
        """The findings of the arms with GC in all layers."""
        return [f for f in self.findings if f.arm in IN_ALL_LAYERS]

    def contrast(self, cell: str, arm: str) -> Comparison | None:
        """Arm `arm` minus the arm with GC in all layers, over the seeds of both; None where there are none.

        The 5 % are shared among the planned contrasts of the cell, one for each other arm.
        """
        main, other = self.main(cell), self.finding(arm, cell)
        if main is None or other is None:
            return None
        sides = [{run.seed: run.last for run in f.with_} for f in (main, other)]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        if not seeds:
            return None
        values = [[side[seed] for seed in seeds] for side in sides]
        return compare(values[0], values[1], main.higher_is_better, len(self.arms_with_gc(cell)) - 1)

    def title(self, cell: str) -> str:
        """What a cell trains, in words."""
        return self.experiment.cells.get(cell, self.experiment.title)

    def steps(self, finding: Finding) -> int | None:
        """The steps of a run of this comparison; None where every run diverged."""
        return (
            sum(steps_of(finding.without[0], line) for line in finding.without[0].curves)
            if finding.without
            else None
        )

    def nearest(self, finding: Finding) -> Nearest | None:
        """The paper's nearest claim."""
        return self.experiment.claims.get((finding.cell, finding.arm))

    def claim(self, finding: Finding) -> float | None:
        """The paper's gain in points for its nearest claim; positive is better."""
        place = self.nearest(finding)
        claim = paper_claims.find(place.table, place.column) if place else None
        if claim is None:
            return None
        return claim.difference if claim.info.higher_is_better else -claim.difference

    def arms_with_gc(self, cell: str) -> list[str]:
        """The planned arms of a cell without the baseline, in order."""
        return [arm.name for arm in self._arms_of(cell) if arm.name != OFF.name]

    def _arms_of(self, cell: str) -> tuple[Arm, ...]:
        return self._cell(cell).arms or self.study.arms

    def _cell(self, name: str) -> Cell:
        return next(cell for cell in self.study.cells if cell.name == name)

    @property
    def planned_pairs(self) -> int:
        """The number of pairs that the protocol fixes for every arm."""
        return len(self.study.seeds)

    @cached_property
    def planned_runs(self) -> tuple[int, int]:
        """Planned runs of the grid and of the comparison."""
        grid = 0 if self.study.scale.tuning is None else len(tasks_of(tuned.tuning_study(self.study), None))
        return grid, sum(len(self._arms_of(cell.name)) for cell in self.study.cells) * self.planned_pairs

    @property
    def complete(self) -> bool:
        """Whether every planned run is there."""
        done = len(self.tuning_records), len(self.records), len(self.beyond_records)
        return done == (*self.planned_runs, self.planned_beyond)

    def tuned_arms(self, cell: str) -> list[TunedArm]:
        """The held-out results of a cell, as far as its tuning runs are finished; empty if there are none."""
        tuning = self.study.scale.tuning
        if tuning is None:
            return []
        return self._tuned_arms(
            cell, tuned.tuning_study, tuning.grid_of(self._cell(cell)), self.tuning_records
        )

    def is_tuned(self, cell: str) -> bool:
        """Whether every tuning run of a cell is finished, so that its rates are chosen."""
        arms, seeds = self.tuned_arms(cell), self._tuning_seeds
        planned = sum(arm.name not in self._follow for arm in self._arms_of(cell))
        return (
            bool(arms)
            and len(arms) == planned
            and all(len(point.results) + point.diverged == seeds for arm in arms for point in arm.points)
        )

    def beyond_arms(self, cell: str) -> list[TunedArm]:
        """The held-out results of a cell beyond the grid; empty if there are none."""
        tuning = self.study.scale.tuning
        if tuning is None:
            return []
        return self._tuned_arms(
            cell, tuned.beyond_study, tuning.beyond_of(self._cell(cell)), self.beyond_records
        )

    @property
    def planned_beyond(self) -> int:
        """Planned runs beyond the grid."""
        if self.study.scale.tuning is None:
            return 0
        return len(tasks_of(tuned.beyond_study(self.study), None))

    @property
    def _follow(self) -> Mapping[str, str]:
        return self.study.scale.tuning.follow if self.study.scale.tuning else {}

    @property
    def _tuning_seeds(self) -> int:
        return len(self.study.scale.tuning.seeds) if self.study.scale.tuning else 0

    def _tuned_arms(
        self, cell: str, part: Callable[[Study], Study], grid: tuned.Grid, records: list[RunRecord]
    ) -> list[TunedArm]:
        one = replace(self.study, cells=tuple(c for c in self.study.cells if c.name == cell))
        names = {point.name for point in part(one).cells}
        runs = []
        for record in records:
            if record.cell in names:
                options = record.config["settings"]["optimizer"]
                runs.append((record.arm, tuple((name, options[name]) for name in grid), record))
        there = {arm for arm, _, _ in runs}
        order = [arm.name for arm in self._arms_of(cell) if arm.name in there]
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


def steps_of(run: RunRecord, line: Mapping[str, Any]) -> int:
    """Steps of an epoch; runs of the first version did not record them."""
    settings = run.config["settings"]
    return int(line.get("steps") or settings["data"]["train"] // settings["batch_size"])


def load(root: Path) -> list[Results]:
    """Return the results of every experiment, in the order of the page."""
    return [Results(experiment, root) for experiment in PROGRAMME]
