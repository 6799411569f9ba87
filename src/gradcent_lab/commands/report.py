"""`gradcent report`: stored runs compared with the paper's numbers, as one page and as files."""

from __future__ import annotations

import argparse
from pathlib import Path

from gradcent_lab.errors import UserError
from gradcent_lab.names import escape_markup, file_name


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path("runs"), help="folder of runs (default ./runs)"
    )
    parser.add_argument("--study", action="append", metavar="NAME", help="only this study; can be repeated")
    parser.add_argument("--scale", metavar="NAME", help="only the runs at this scale")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="output folder (default ROOT/report)")
    parser.add_argument(
        "--title", default="Gradient centralization: the paper's numbers and ours", help="title of the page"
    )


def run(args: argparse.Namespace) -> int:
    """Write the report."""
    from gradcent_lab.experiment.import_spec import need

    for package in ("matplotlib", "rich", "scipy"):
        need(package, "'gradcent[lab]'")
    from rich.console import Console

    from gradcent_lab import store
    from gradcent_lab.recipes import all_recipes
    from gradcent_lab.report.html import write_report
    from gradcent_lab.report.sections import sections
    from gradcent_lab.report.write import write_section

    records = store.load(args.root)
    at_scale = [r for r in records if not args.scale or r.scale == args.scale]
    page_sections = sections(at_scale, all_recipes(), args.root, studies=args.study)
    if not page_sections:
        selection = f" of {' or '.join(args.study)}" if args.study else ""
        at = f" at scale {args.scale}" if args.scale else ""
        studies = ", ".join(sorted({r.study for r in records})) or "no runs"
        raise UserError(f"{args.root} has no finished runs{selection}{at} (it has {studies})")
    out = args.out or args.root / "report"
    console = Console()
    for section in page_sections:
        folder = out / file_name(f"{section.name}-{section.records[0].scale}")
        figure_paths, table_paths = write_section(section, folder)
        for finding in section.findings:
            if finding.comparison:
                arm = "" if finding.arm == "on" else f", {finding.arm}"
                name = f"{section.name} ({section.records[0].scale}) {finding.cell}{arm}"
                single = " (one pair has no interval)" if finding.comparison.n == 1 else ""
                console.print(
                    f"  {escape_markup(f'{name:<44}')} {finding.verdict}{single}",
                    highlight=False,
                    soft_wrap=True,
                )
        console.print(
            f"  [dim]{escape_markup(folder)}: {len(table_paths)} tables, {len(figure_paths) // 2} figures[/dim]",
            highlight=False,
            soft_wrap=True,
        )
    page = write_report(page_sections, out / "report.html", title=args.title, missing=True)
    console.print(f"\n  report   {escape_markup(page)}\n", highlight=False, soft_wrap=True)
    return 0
