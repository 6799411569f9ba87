"""Every number printed in the paper's tables 1 to 9, as data (`claims.csv`: table, row, column, mean, std).

Rows and columns carry the paper's own labels; where a table has two header lines (tables 4, 8, 9) the
column is both, joined by a space: `SGDM 0.05`, `R50 AP.5`. A claim about GC is a pair of numbers,
`w/o GC` and `w/ GC`, under one column, and that column is what a recipe calls a cell.
A test reads the paper's LaTeX and compares it with this file.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

WITHOUT, WITH = "w/o GC", "w/ GC"


@dataclass(frozen=True, slots=True)
class Claim:
    """One printed number; `std` is None where the paper prints none."""

    table: int
    row: str
    column: str
    mean: float
    std: float | None


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What the numbers of one table are: caption, unit, which direction is good, runs behind a mean."""

    caption: str
    metric: str
    higher_is_better: bool
    repeats: int


# `repeats` is 10 where the text says so (Sections 5.2, 5.3, 5.5) and 1 where no std is printed.
TABLES: Mapping[int, TableInfo] = MappingProxyType(
    {
        1: TableInfo("Networks on CIFAR-100, SGDM", "test accuracy, %", True, 10),
        2: TableInfo("Optimizers on CIFAR-100, ResNet-50", "test accuracy, %", True, 10),
        3: TableInfo("Weight decay on CIFAR-100, ResNet-50, SGDM", "test accuracy, %", True, 10),
        4: TableInfo("Learning rates on CIFAR-100, ResNet-50", "test accuracy, %", True, 10),
        5: TableInfo("ImageNet", "top-1 error, %", False, 1),
        6: TableInfo("The fine-grained sets", "images", True, 1),
        7: TableInfo("Fine-grained classification, pretrained ResNet-50", "test accuracy, %", True, 10),
        8: TableInfo("COCO detection, Faster R-CNN with FPN", "AP", True, 1),
        9: TableInfo("COCO detection and segmentation, Mask R-CNN with FPN", "AP", True, 1),
    }
)

# Section 3.4 prints one more measurement: seconds added to an epoch of 71 s (CIFAR-100, ResNet-50).
EXTRA_SECONDS_PER_EPOCH = 0.6
SECONDS_PER_EPOCH = 71.0


@dataclass(frozen=True, slots=True)
class PairedClaim:
    """What the paper claims for one cell: the number without GC and the number with it."""

    table: int
    cell: str
    without: Claim
    with_: Claim

    @property
    def info(self) -> TableInfo:
        """The table this claim stands in."""
        return TABLES[self.table]

    @property
    def difference(self) -> float:
        """With GC minus without, in the table's own unit (negative is good for error rates)."""
        return self.with_.mean - self.without.mean

    @property
    def standard_error(self) -> float | None:
        """Standard error of `difference`, the two arms taken as independent; None without printed std."""
        if self.without.std is None or self.with_.std is None:
            return None
        return float(((self.without.std**2 + self.with_.std**2) / self.info.repeats) ** 0.5)


@cache
def claims() -> tuple[Claim, ...]:
    """Return every claim, in the paper's order."""
    text = resources.files("gradcent_lab.analysis").joinpath("claims.csv").read_text(encoding="utf-8")
    return tuple(
        Claim(
            int(line["table"]),
            line["row"],
            line["column"],
            float(line["mean"]),
            float(line["std"]) if line["std"] else None,
        )
        for line in csv.DictReader(text.splitlines())
    )


@cache
def paired_claims() -> tuple[PairedClaim, ...]:
    """Return every with/without pair, in the paper's order."""
    numbers = {(claim.table, claim.row, claim.column): claim for claim in claims()}
    return tuple(
        PairedClaim(claim.table, claim.column, claim, numbers[claim.table, WITH, claim.column])
        for claim in claims()
        if claim.row == WITHOUT
    )


def find(table: int, cell: str) -> PairedClaim | None:
    """Return what the paper claims for a cell of a table, or None where it prints nothing.

    >>> find(1, "R18").difference.__round__(2)
    1.95
    """
    return next((claim for claim in paired_claims() if (claim.table, claim.cell) == (table, cell)), None)
