"""Write the files of a report: the page, the figures (SVG, PNG) and the tables (Markdown, CSV, LaTeX)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradcent_lab.names import distinct_file_names
from gradcent_lab.report import figures
from gradcent_lab.report.html import curve_groups, target_of, write_report
from gradcent_lab.report.section import Section
from gradcent_lab.report.tables import findings_csv, findings_table, other_epoch
from gradcent_lab.store.atomic_files import drop_abandoned, make_folder, write_text


@dataclass(frozen=True)
class Written:
    """The files of one comparison."""

    report: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]


def write_outputs(section: Section, out: Path, *, title: str, kicker: str) -> Written:
    """Write report.html and everything that is in it as files of its own into `out`."""
    paths, texts = write_section(section, out)
    page = write_report([section], out / "report.html", title=title, kicker=kicker)
    return Written(page, tuple(paths), tuple(texts))


def write_section(section: Section, out: Path) -> tuple[list[Path], list[Path]]:
    """Write a study's figures (SVG, PNG) and tables (Markdown, CSV, LaTeX); return the paths of both."""
    drop_abandoned(make_folder(out))  # files that a killed process left half-written
    findings, scale_text = section.findings, section.scale_line
    drawn: list[Path] = []
    texts: dict[str, str] = {}
    if findings:
        table = findings_table(findings, section.description or None)
        texts = {
            "table.md": table.markdown(),
            "table.csv": findings_csv(findings),
            "table.tex": table.latex(),
        }
    for number, table in enumerate((*section.tables, *other_epoch(findings)), start=1):
        texts |= {f"table-{number}.md": table.markdown(), f"table-{number}.tex": table.latex()}
    if any(finding.comparison for finding in findings):
        drawn += figures.save(figures.differences(findings, scale_text), out / "differences")
    groups = curve_groups(findings)
    names = distinct_file_names([f"curves-{cell}" for cell in groups])
    for cell, runs in groups.items():
        name = names[f"curves-{cell}"] if len(groups) > 1 else "curves"
        caption, target = f"{figures.shorten(cell, 100)}. {scale_text}".strip(), target_of(findings, cell)
        drawn += figures.save(figures.learning_curves(runs, note=caption, target=target), out / name)
    for picture in section.pictures:
        drawn += figures.save(picture.figure, out / picture.name)
    for name, text in texts.items():
        write_text(out / name, text)
    return drawn, [out / name for name in texts]
