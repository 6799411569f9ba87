"""A section of a report: the runs of one study at one scale, their findings, and what is shown beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.report.tables import Table
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and its caption; `narrow` is drawn for phones and shown there instead."""

    name: str
    figure: Figure
    caption: str
    narrow: Figure | None = None


@dataclass(frozen=True)
class Section:
    """One study at one scale.

    findings: what the runs show, computed once; empty for a measurement.
    description: the scale, or the set-up of a user's experiment.
    scale_name: how the scale is introduced on the page; empty for a user's experiment.
    repeat: the commands that repeat the runs.
    paste: the lines for the reader's training script.
    pictures, tables: what the recipe shows beside the table of pairs.
    answer: the advice at the top of the page, where it follows from several findings together.
    """

    records: Sequence[RunRecord]
    findings: Sequence[Finding] = ()
    title: str = ""
    description: str = ""
    scale_name: str = ""
    repeat: Sequence[str] = ()
    notes: Sequence[str] = ()
    paste: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    answer: str = ""

    @property
    def name(self) -> str:
        """The study's name, for links and folders."""
        return self.records[0].study

    @property
    def scale_line(self) -> str:
        """The scale in one line, for the page and for figures that leave it."""
        return ": ".join(part for part in (self.scale_name, self.description) if part)
