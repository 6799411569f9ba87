"""Campaign 6: hostile names, paths, markup, archives, pickles, table cells and environment variables.

Nothing hostile may execute, write outside its folder, or put an element into the report page.
"""

from __future__ import annotations

import csv
import hashlib
import html.parser
import io
import os
import random
import shutil
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gradcent_lab.analysis.findings import findings
from gradcent_lab.data import download
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, RunConfig
from gradcent_lab.names import escape_markup, printable
from gradcent_lab.report.html import write_report
from gradcent_lab.report.section import Section
from gradcent_lab.report.tables import findings_csv, findings_table
from gradcent_lab.run import checkpoint
from gradcent_lab.run.accelerator import check_environment
from gradcent_lab.store import records

from .common import TOY, Campaign, Figures, Session

HTML = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' onload='alert(1)",
    "<svg/onload=alert(1)>",
    "javascript:alert(1)",
    "<!-- <script>alert(1)</script>",
    "]]><script>alert(1)</script>",
    "<iframe src=//evil>",
    "<style>*{display:none}</style>",
    "</style><script>alert(1)</script>",
    "{{7*7}} ${7*7} #{7*7}",
]
CELLS = ["=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "=HYPERLINK(1)", "a,b", 'a"b']
TEX = [
    r"\input{/etc/passwd}",
    r"\write18{id}",
    "$x$",
    "a & b",
    r"a \\ b",
    "100%",
    "{",
    "}",
    "^^5c",
    "#1",
    "~",
]
MARKUP = ["[/bold]", "[red]x", "[link=file:///etc]x[/link]", "[", "]", "\\[", "[@click=app.quit]x"]
NAMES = [
    "..",
    ".",
    "../evil",
    "/abs",
    "a/b",
    "a\\b",
    "C:x",
    "nul\0",
    "x\ny",
    "\x1b[2J",
    "\ud800",
    "x" * 300,
    "",
    " ",
]
VARIABLES = [
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "ACCELERATE_DYNAMO_BACKEND",
    "ACCELERATE_USE_DEEPSPEED",
]


class Elements(html.parser.HTMLParser):
    """Counts elements and collects attributes that could execute."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count one element."""
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for name, value in attrs:
            address = name in ("href", "src", "action", "xlink:href", "formaction")
            if name.startswith("on") or (address and (value or "").strip().lower().startswith("javascript:")):
                self.active.append(f"{name}={value}")


def run(session: Session) -> None:
    """Try hostile values, spread over all kinds."""
    sys.path.insert(0, str(TOY))
    figures, rng, folder = session.figures, session.rng(), session.folder
    kinds = (_names, _archives, _pickles, _cells, _markup, _environment)
    for number in range(max(1, (session.n - figures.tried) // 150)):
        _page(folder, number, figures, rng)
    attempts = [kind(folder, rng) for kind in kinds]
    while attempts and session.goes_on():
        for attempt in list(attempts):
            outcome = next(attempt, None)
            if outcome is None:
                attempts.remove(attempt)
                continue
            name, problem = outcome
            figures.tried += 1
            figures.count(name)
            if problem:
                figures.fail("wrong", f"{name}: {problem}")
    if (folder / "executed").exists():
        figures.fail("wrong", "hostile code was executed")


def _page(folder: Path, number: int, figures: Figures, rng: random.Random) -> None:
    """Put hostile text into every field that a page shows, and count elements beside those of a harmless page."""
    import synthetic_records as synthetic

    hostile = [*HTML, *MARKUP, *TEX, *CELLS]

    def elements(text: str) -> Elements:
        runs = [
            replace(
                r,
                cell=text,
                metric_name=text,
                environment={**r.environment, "processor": text, "system": text, "versions": {text: text}},
                config={**r.config, "settings": {**r.config["settings"], text: text, "optimizer": text}},
            )
            for r in synthetic.study(n=3, epochs=2)
        ]
        section = Section(
            runs, findings(runs), title=text, description=text, notes=(text,), repeat=(text,), paste=text
        )
        page = write_report([section], folder / f"page-{number}.html", title=text)
        parsed = Elements()
        parsed.feed(page.read_text())
        return parsed

    harmless = elements("harmless")
    for text in rng.sample(hostile, 3):
        parsed = elements(text)
        figures.tried += 12
        figures.count("fields of the report page", 12)
        for tag in ("script", "img", "iframe", "style", "object", "embed", "link", "base", "form"):
            if parsed.counts.get(tag, 0) != harmless.counts.get(tag, 0):
                figures.fail("wrong", f"{text!r} added <{tag}> to the page")
        if len(parsed.active) != len(harmless.active):
            figures.fail("wrong", f"{text!r} added {parsed.active}")


def _names(folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Names of experiments: refused, or one folder below the root."""
    root = folder / "deep" / "root"
    while True:
        name = (
            rng.choice(NAMES)
            if rng.random() < 0.5
            else "".join(chr(rng.choice(_CODES)) for _ in range(rng.randrange(1, 12)))
        )
        try:
            path = records.folder(root, RunConfig(name, "cell", OFF, 0, "own", {}))
            inside = os.path.normpath(path).startswith(os.path.normpath(root) + os.sep)
            yield "experiment name", "" if inside and path.parent.parent == root else f"{name!r} gives {path}"
        except UserError as error:
            yield "experiment name", "" if str(error).isprintable() else f"{name!r}: unprintable message"


_CODES = [
    *range(0, 128),
    0x85,
    0x200B,
    0x202E,
    0xD800,
    0xE9,
    0x4E2D,
    0x1F600,
    *[ord(c) for c in "../\\:~$"] * 6,
]


def _archives(folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Archives with members outside, links, devices and damage: nothing appears beside the data folder."""
    outside = folder / "archives"
    root = outside / "data"
    root.mkdir(parents=True)
    number = 0
    while True:
        number += 1
        path = outside / f"set{number}.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for _ in range(rng.randrange(1, 4)):
                tar.addfile(*_member(rng))
        if rng.random() < 0.3:
            content = bytearray(path.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content[: rng.randrange(1, len(content))] if rng.random() < 0.5 else content)
        md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        problem = ""
        try:
            download.fetch(path.as_uri(), md5, root)
        except UserError as error:
            problem = "" if "\n" not in str(error) else "message of several lines"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        (root / path.name).unlink(missing_ok=True)
        path.unlink()
        stray = [p.name for p in outside.iterdir() if p != root]
        links = [
            p
            for p in root.rglob("*")
            if p.is_symlink() and not os.path.realpath(p).startswith(os.path.realpath(root))
        ]
        if stray or links:
            problem = f"outside the folder: {stray} {links}"
        shutil.rmtree(root)
        root.mkdir()
        yield "archive", problem


def _member(rng: random.Random) -> tuple[tarfile.TarInfo, io.BytesIO]:
    names = [
        "a/b.txt",
        "../up.txt",
        "/tmp/gradcent-evil.txt",
        "a/../../up.txt",
        "link",
        "x" * 300,
        "a\0b",
        "./.",
    ]
    member = tarfile.TarInfo(rng.choice(names))
    member.type = rng.choice(
        [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
    )
    member.linkname = rng.choice(["../../etc", "/etc/passwd", "a/b.txt", ""])
    member.size = 3 if member.isreg() else 0
    return member, io.BytesIO(b"abc")


class _Bomb:
    """Executes when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def _pickles(folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Checkpoints with a right checksum and a hostile pickle: refused, never executed."""
    path = folder / "checkpoint.pt"
    keys = ("model", "optimizer", "position", "scheduler", "processes", "scaler", "run_id", "more")
    while True:
        document: dict[str, Any] = {"run_id": "id", "model": {"w": torch.zeros(2)}}
        bomb: Any = _Bomb(folder / "executed")
        for _ in range(rng.randrange(3)):
            bomb = rng.choice(([bomb], {"x": bomb}, (bomb,)))
        document[rng.choice(keys)] = bomb
        with open(path, "wb") as stream:
            checkpoint.write_document(stream, document)
        try:
            checkpoint.read_document(path, "id")
            yield "checkpoint with a hostile pickle", "accepted"
        except UserError:
            yield "checkpoint with a hostile pickle", "executed" if (folder / "executed").exists() else ""


def _cells(folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Cells of CSV and LaTeX: no formulas, no commands."""
    import synthetic_records as synthetic

    while True:
        text = rng.choice([*CELLS, *TEX, *HTML])
        found = findings([replace(r, cell=text) for r in synthetic.study(n=2, epochs=1)])
        rows = list(csv.reader(io.StringIO(findings_csv(found))))
        formulas = [cell for row in rows[1:] for cell in row[:8] if cell[:1] in ("=", "+", "-", "@")]
        yield "CSV cell", f"{formulas}" if formulas else ""
        tex = findings_table(found).latex()
        bad = [word for word in (r"\input", r"\write18") if word in tex]
        yield "LaTeX cell", f"{bad} from {text!r}" if bad else ""
        markdown = findings_table(found).markdown()
        yield (
            "Markdown cell",
            f"{text!r} is an element" if "<script" in markdown or "<img" in markdown else "",
        )


def _markup(folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Rich markup and control characters reach the terminal as text."""
    from rich.text import Text

    pieces = [*MARKUP, "\x1b[2J", "\x07", "\x9b31m", "text", " ", "\\"]
    while True:
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 6)))
        try:
            shown = Text.from_markup(f"[bold]{escape_markup(text)}.[/bold]").plain
            problem = "" if shown == f"{printable(text)}." else f"{text!r} is shown as {shown!r}"
        except Exception as error:
            problem = f"{text!r}: {type(error).__name__}"
        if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in printable(text)):
            problem = f"{text!r} keeps control characters"
        yield "terminal text", problem


def _environment(folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Variables of accelerate that change numbers are refused."""
    while True:
        name, value = rng.choice(VARIABLES), rng.choice(["4", "inductor", "true", "1e9", "x; rm", "\udc80"])
        os.environ[name] = value
        try:
            check_environment(False)
            yield "environment variable", f"{name}={value!r} was accepted"
        except UserError:
            yield "environment variable", ""
        finally:
            del os.environ[name]


CAMPAIGN = Campaign(
    "hostile",
    "hostile names, page fields, archives, pickles, table cells, terminal text, environment variables",
    run,
    target=5_000,
    short=150,
)
