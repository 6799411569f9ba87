"""The evidence gallery: every stored study with its sentences, its table and its figures, from results/ alone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "results" / "studies"


def markdown() -> str:
    """Return the gallery: an overview, then one section per study."""
    from gradcent_lab.recipes import all_recipes
    from gradcent_lab.report.sections import sections
    from gradcent_lab.report.tables import decimals, interval_text, signed
    from gradcent_lab.store import records as store

    found = sections(store.load(STUDIES), all_recipes(), STUDIES.relative_to(ROOT))
    overview = ["| study | what | difference | pairs | verdict |", "|---|---|---|---|---|"]
    for section in found:
        for finding in section.findings:
            result = finding.comparison
            difference = (
                ""
                if result is None
                else f"{signed(result.difference, decimals(finding))}, {interval_text(finding)}"
            )
            what = finding.cell if finding.arm == "on" else f"{finding.cell}, {finding.arm}"
            link = f"[{section.name}](#{_slug(section.title)})"
            overview.append(
                f"| {link} | {what} | {difference} | {result.n if result else 0} | {finding.verdict} |"
            )
    return "\n".join(overview) + "\n\n" + "\n".join(_section(section) for section in found)


def _section(section: object) -> str:
    """Return one study: the scale, a sentence per comparison, table, figures and the commands that repeat it."""
    from gradcent_lab.report import figures
    from gradcent_lab.report.html import curve_groups, target_of
    from gradcent_lab.report.section import Section
    from gradcent_lab.report.tables import findings_table
    from gradcent_lab.report.wording import advise, conclude

    assert isinstance(section, Section)
    name = _slug(f"{section.name} {section.records[0].scale}")
    lines = [f"## {section.title}", "", f"{section.scale_line}."]
    for finding in section.findings:
        arm = "" if finding.arm == "on" else f", {finding.arm}"
        lines += ["", f"- **{finding.cell}{arm}: {finding.verdict}.** {conclude(finding)} {advise(finding)}"]
    if section.findings:
        lines += ["", findings_table(section.findings, "").markdown()]
    for table in section.tables:
        lines += ["", table.markdown()]
    for cell, runs in curve_groups(section.findings).items():
        figure = figures.learning_curves(runs, target=target_of(section.findings, cell))
        lines += ["", _figure(figure, f"{name}-{_slug(cell)}", f"{cell}: training curves of every run")]
    for picture in section.pictures:
        lines += ["", _figure(picture.figure, f"{name}-{_slug(picture.name)}", picture.caption)]
    if section.repeat:
        lines += ["", "Repeat it:", "", "```", *section.repeat, "```"]
    return "\n".join(lines) + "\n"


def _figure(figure: object, name: str, caption: str) -> str:
    from gradcent_lab.report.figures.style import inline_svg

    svg = re.sub(r"\n\s*", " ", inline_svg(figure, name, caption))  # a blank line would end the HTML block
    return f'<figure class="study">{svg}<figcaption>{caption}</figcaption></figure>\n'


def _slug(text: str) -> str:
    """Return the anchor that Sphinx gives a heading."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
