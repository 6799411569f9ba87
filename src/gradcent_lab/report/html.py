"""One self-contained HTML page: the paper's number, ours, n, interval, verdict, curves, how to repeat.

Nothing is loaded from outside: styles, script and figures are inside the file. The styles are in
`report.html`; this module fills the template and escapes everything that comes from a record.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from gradcent_lab.analysis import paper_claims
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.verdict import Verdict
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.report import figures
from gradcent_lab.report.figures.curves import legend_text
from gradcent_lab.report.section import Picture, Section
from gradcent_lab.report.tables import (
    DASH,
    Table,
    decimals,
    findings_csv,
    findings_table,
    other_epoch,
    signed,
)
from gradcent_lab.report.wording import MEANING, advise, conclude
from gradcent_lab.store.atomic_files import make_folder, write_text
from gradcent_lab.store.records import RunRecord

_NONE = ' class="none"'  # a cell without a value, which a phone leaves out
PHONE = 4.2  # inches: the width of a figure that a phone shows


def write_report(
    sections: Sequence[Section],
    path: Path,
    *,
    title: str,
    kicker: str = "gradcent report",
    missing: bool = False,
) -> Path:
    """Write the page and return its path; `missing` adds the paper's tables that no section has."""
    make_folder(path.parent)
    text = render(sections, title=title, kicker=kicker, missing=missing)
    write_text(path, text)
    return path


def render(sections: Sequence[Section], *, title: str, kicker: str, missing: bool = False) -> str:
    """Return the page as text."""
    bodies: list[str] = []
    names: list[tuple[str, str]] = []
    everything: list[Finding] = []
    for number, section in enumerate(sections, start=1):
        everything += section.findings
        names.append((f"s{number}", section.title or section.name))
        bodies.append(_section(f"s{number}", section))
    rest = _missing({f.claim.table for f in everything if f.comparison and f.claim}) if missing else ""
    if rest:
        bodies.append(rest)
        names.append(("missing", "Not run here"))
    links = "".join(f'<li><a href="#{key}">{_e(name)}</a></li>' for key, name in names)
    template = Template(
        resources.files("gradcent_lab.report").joinpath("report.html").read_text(encoding="utf-8")
    )
    return template.safe_substitute(
        title=_e(title),
        kicker=_e(kicker),
        answer=_joint_answer(sections) or _answer(everything),
        contents=f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(names) > 1 else "",
        body="\n".join(bodies),
        footer=_footer(everything),
    )


def _joint_answer(sections: Sequence[Section]) -> str:
    """The advice of a page with one section that has several arms, and the verdict of each arm."""
    if len(sections) != 1 or not sections[0].answer:
        return ""
    arms = ", ".join(f"{_e(f.arm)} {_pill(f.answer)}" for f in sections[0].findings)
    return f'<p class="answer">{arms}<br><strong>{_e(sections[0].answer)}</strong></p>'


def _answer(findings: Sequence[Finding]) -> str:
    # runs that several tables show are one comparison
    distinct = {(f.metric, tuple(run.path for run in f.with_) or id(f)): f for f in findings}
    judged = [f for f in distinct.values() if f.comparison or f.divergence.any]
    if len(judged) == 1:
        pill, evidence, advice = _pill(judged[0].answer), _e(conclude(judged[0])), _e(advise(judged[0]))
        return f'<p class="answer">{pill}<br>{evidence}<br><strong>{advice}</strong></p>'
    counts = {kind: sum(f.answer.kind == kind for f in judged) for kind in MEANING}
    parts = [f"{count} {_pill(Verdict(kind))}" for kind, count in counts.items() if count]
    return f'<p class="answer">{len(judged)} comparisons: {", ".join(parts)}</p>' if judged else ""


def _section(key: str, section: Section) -> str:
    findings, scale_text = section.findings, section.scale_line
    parts = [
        f'<section id="{key}" aria-labelledby="{key}-h">',
        f'<h2 id="{key}-h">{_e(section.title or section.name)}</h2>',
        f'<p class="scale">{_e(scale_text)}</p>',
    ]
    if findings:
        table = findings_table(findings, section.description or None)
        parts += [_table(table, findings), _notes(table.notes)]
    for table in (*section.tables, *other_epoch(findings)):
        parts += [_plain_table(table), _notes(table.notes)]
    if section.notes:
        listed = "".join(f"<li>{_e(note)}</li>" for note in section.notes)
        parts.append(f'<ul class="notes" aria-label="Notes">{listed}</ul>')
    if any(f.comparison for f in findings):
        parts.append(_differences(key, findings))
    for number, picture in enumerate(section.pictures):
        parts.append(_picture(f"{key}-picture-{number}", picture))
    parts.append(_curves(key, findings))
    if section.paste:
        parts += ["<h3>In your own script</h3>", _code(section.paste)]
    parts += [_pairs(findings), _repeat(section), "</section>"]
    return "\n".join(part for part in parts if part)


def _picture(name: str, picture: Picture) -> str:
    """A figure close to its drawn size; on a phone its narrow form, or the same shrunk to the screen."""
    size = 96 * picture.figure.get_figwidth()
    svg = figures.inline_svg(picture.figure, name, picture.caption)
    drawn = svg.replace("<svg", f'<svg style="max-width:{1.2 * size:.0f}px"', 1)
    if picture.narrow is not None:
        drawn = _by_width(drawn, figures.inline_svg(picture.narrow, f"{name}-narrow", picture.caption))
    return f'<figure class="full">{drawn}<figcaption>{_e(picture.caption)}</figcaption></figure>'


def _by_width(wide: str, narrow: str) -> str:
    """Two drawings of one figure, of which the page shows the one that fits the screen."""
    return wide.replace("<svg", '<svg class="on-wide"', 1) + narrow.replace(
        "<svg", '<svg class="on-phone"', 1
    )


def _notes(notes: Sequence[str]) -> str:
    return '<div class="notes">' + "".join(f"<p>{_e(note)}</p>" for note in notes) + "</div>" if notes else ""


def _plain_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_e(name)}</th>' for name in table.header)
    rows = []
    for first, *rest in table.rows:
        cells = [f'<th scope="row">{_e(first)}</th>']
        cells += [
            f'<td data-label="{_e(n)}"{_NONE if v == DASH else ""}>{_e(v)}</td>'
            for n, v in zip(table.header[1:], rest, strict=True)
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<h3>{_e(table.title)}</h3><div class="wide"><table class="stack"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _table(table: Table, findings: Sequence[Finding]) -> str:
    head = "".join(f'<th scope="col">{_e(name)}</th>' for name in table.header)
    rows = []
    for row, finding in zip(table.rows, findings, strict=True):
        cells = [f'<th scope="row">{_e(row[0])}</th>']
        for name, value in zip(table.header[1:-1], row[1:-1], strict=True):
            kind = _NONE if value == DASH else ""
            cells.append(f'<td data-label="{_e(name)}"{kind}>{_e(value)}</td>')
        cells.append(f'<td data-label="verdict">{_pill(finding.answer)}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table class="stack"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _differences(key: str, findings: Sequence[Finding]) -> str:
    shown = [f for f in findings if f.comparison]
    text = "; ".join(f"{f.cell}: {conclude(f)}" for f in shown)
    wide = figures.inline_svg(figures.differences(shown, alone=False), f"{key}-differences", text)
    phone = figures.differences(shown, alone=False, width=PHONE)
    narrow = figures.inline_svg(phone, f"{key}-differences-narrow", text)
    svg = _by_width(wide, narrow)
    return f'<h3>Pair by pair</h3><figure class="one">{svg}<figcaption>{_e(legend_text(shown))}</figcaption></figure>'


def _curves(key: str, findings: Sequence[Finding]) -> str:
    """One block per cell with all its arms; if there are several blocks, the first is open."""
    blocks = []
    groups = curve_groups(findings)
    several = len(groups) > 1
    for number, (cell, runs) in enumerate(groups.items()):
        panels = []
        for quantity, name in (
            ("train_loss", "training loss"),
            ("eval_metric", f"test {split_metric_name(runs[0].metric_name)[0]}"),
        ):
            text = f"{cell}: {name} over epochs, with and without GC"
            figure = figures.learning_curves(runs, (quantity,), target=target_of(findings, cell))
            panels.append(figures.inline_svg(figure, f"{key}-{quantity}-{number}", text))
        seeds = len({run.seed for run in runs})
        lines = f"Thick: mean over {seeds} seeds; thin: single runs." if seeds > 1 else "One seed."
        drawn = f'<figure class="panels">{"".join(panels)}<figcaption>{_e(lines)}</figcaption></figure>'
        opened = " open" if number == 0 else ""
        block = f"<details{opened}><summary>{_e(cell)}</summary><div>{drawn}</div></details>"
        blocks.append(block if several else drawn)
    return "\n".join(["<h3>Curves</h3>", *blocks]) if blocks else ""


def target_of(findings: Sequence[Finding], cell: str) -> float | None:
    """Return the target of a cell's speed measurement."""
    return next((f.speed.target for f in findings if f.cell == cell and f.speed is not None), None)


def curve_groups(findings: Sequence[Finding]) -> dict[str, list[RunRecord]]:
    """Return the runs whose curves are drawn together, by cell: all its arms, in the run's own metric only.

    A detector has six metrics; their numbers are in the tables, and six times the curves would add nothing.
    """
    groups: dict[str, list[RunRecord]] = {}
    owner: dict[Path, str] = {}  # the cell under which a run's curves are drawn: the first
    for finding in findings:
        if finding.comparison and has_curves(finding):
            for run in (*finding.without, *finding.with_):
                if owner.setdefault(run.path, finding.cell) == finding.cell:
                    drawn = groups.setdefault(finding.cell, [])
                    if all(run.path != other.path for other in drawn):
                        drawn.append(run)
    return groups


def has_curves(finding: Finding) -> bool:
    """Whether the runs have curves over epochs (the rows of a measurement are not epochs)."""
    lines = [line for run in finding.without for line in run.curves]
    return bool(lines) and all("train_loss" in line and "eval_metric" in line for line in lines)


def _pairs(findings: Sequence[Finding]) -> str:
    rows = []
    for f in findings:
        for a, b in zip(f.without, f.with_, strict=True):
            x, y = getattr(a, f.epoch), getattr(b, f.epoch)
            places = decimals(f) + 1
            values = [f"{v:.{places}f}" for v in (x, y)] + [f"{y - x:+.{places}f}".replace("-", "−")]
            cells = [f.cell, f.arm, str(a.seed), *values, a.initial_weights[:12]]
            rows.append("<tr>" + "".join(f"<td>{_e(word)}</td>" for word in cells) + "</tr>")
    if not rows:
        return ""
    names = ("cell", "arm", "seed", "without GC", "with GC", "difference", "initial weights (sha256)")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    data = base64.b64encode(findings_csv(findings).encode()).decode()
    link = f'<p><a download="findings.csv" href="data:text/csv;base64,{data}">These findings as CSV</a></p>'
    table = (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )
    return f"<details><summary>Every pair ({len(rows)})</summary><div>{table}{link}</div></details>"


def _repeat(section: Section) -> str:
    runs = section.records
    if not runs:  # a forecast trains no stored runs
        return f"<h3>How to repeat it</h3>{_code(chr(10).join(section.repeat))}" if section.repeat else ""
    environment, config = runs[0].environment, runs[0].config
    versions = ", ".join(f"{k} {v}" for k, v in environment.get("versions", {}).items() if v)
    lines = {
        "software": f"{versions}, Python {environment.get('python', '?')}",
        "machine": f"{environment.get('processor', '?')}, {environment.get('system', '')}",
        "threads": f"{environment.get('threads', '?')} of {environment.get('cores', '?')} cores",
        "GPUs": ", ".join(environment.get("gpus") or ["none"]),
        "time": f"{sum(run.seconds for run in {r.path: r for r in runs}.values()):.0f} s of training in all",
        "arithmetic": ", ".join(f"{k}: {v}" for k, v in config.get("numerics", {}).items()),
    }
    listed = "".join(f"<dt>{_e(k)}</dt><dd>{_e(v)}</dd>" for k, v in lines.items())
    command = _code("\n".join(section.repeat)) if section.repeat else ""
    settings = _e(json.dumps(config.get("settings", {}), indent=2, ensure_ascii=False, default=str))
    return (
        f"<details><summary>How to repeat it, and where it ran</summary><div>{command}<dl>{listed}</dl>"
        f"<p>Settings of {_e(runs[0].cell)}:</p><pre>{settings}</pre></div></details>"
    )


def _missing(done: set[int]) -> str:
    rows = []
    for number, info in paper_claims.TABLES.items():
        pairs = [c for c in paper_claims.paired_claims() if c.table == number]
        if number in done or not pairs:
            continue
        span = sorted(c.difference for c in pairs)
        text = (
            f"{len(pairs)} pairs, differences {signed(span[0], 2)} to {signed(span[-1], 2)} ({info.metric})"
        )
        pill = _pill(Verdict("not run at this scale"))
        name = f"Table {number}: {info.caption}"
        rows.append(
            f'<tr><th scope="row">{_e(name)}</th><td data-label="paper">{_e(text)}</td><td>{pill}</td></tr>'
        )
    if not rows:
        return ""
    return (
        '<section id="missing" aria-labelledby="missing-h"><h2 id="missing-h">Not run here</h2>'
        f'<div class="wide"><table class="stack"><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def _footer(findings: Iterable[Finding]) -> str:
    used = {f.answer.kind for f in findings}
    items = "".join(
        f"<dt>{_pill(Verdict(kind))}</dt><dd>{_e(text)}</dd>"
        for kind, text in MEANING.items()
        if kind in used
    )
    verdicts = (
        f"<h3>The verdicts</h3><dl>{items}</dl><p>Both arms of a pair begin with the same weights and see the same "
        "batches.</p>"
    )
    source = "<p>GC: gradient centralization, Yong, Huang, Hua and Zhang, ECCV 2020.</p>"
    return f"{verdicts}{source}" if items else source


def _pill(verdict: Verdict) -> str:
    return f'<span class="pill {verdict.kind.replace(" ", "-")}">{_e(verdict.label)}</span>'


def _code(text: str) -> str:
    return f'<div class="code"><pre>{_e(text)}</pre></div>'


def _e(text: str) -> str:
    return html.escape(str(text), quote=True)
