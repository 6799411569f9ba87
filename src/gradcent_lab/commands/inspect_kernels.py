"""`gradcent inspect-kernels`: compile the GPU kernels ahead of time, disassemble them and count. No GPU is needed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--targets", nargs="+", metavar="TARGET", help="sm_80, sm_90, sm_100, gfx942 (default: all)"
    )
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="also replace the generated blocks of this page (docs/kernels.md)",
    )
    parser.add_argument("--match", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="also write inspection.json and inspection.md there"
    )


def run(args: argparse.Namespace) -> int:
    """Inspect, print, write; the exit status is 1 if a kernel spills registers or divides integers in its hot code."""
    from ..errors import UserError
    from ..inspection.compile import TARGETS, all_cases
    from ..inspection.report import docs_blocks, inspect_case, markdown, roofline_markdown, worse_than_torch
    from ..store.atomic_files import check_writable, make_folder, write_text

    targets = args.targets or list(TARGETS)
    for target in targets:
        if target not in TARGETS:
            raise UserError(f"{target!r} is not one of {', '.join(TARGETS)}")
    cases = [case for case in all_cases() if args.match in case.name]
    if not cases:
        raise UserError(
            f"no case contains {args.match!r}: there are {', '.join(dict.fromkeys(c.name for c in all_cases()))}"
        )
    files = [args.page] if args.page else []
    if args.out:
        files += [make_folder(args.out) / name for name in ("inspection.json", "inspection.md")]
    for file in files:
        check_writable(file)  # now, not after compiling
    rows = []
    for case in cases:
        for target in targets:
            rows.append(inspect_case(case, target))
            print(markdown(rows[-1:]).splitlines()[-1], flush=True)
    worse = worse_than_torch(rows)
    text = "\n\n".join(
        [
            "# The GPU kernels, inspected",
            "Compiled ahead of time and disassembled; no GPU has run them. In brackets: torch's fused kernel "
            "from the installed wheel, whose instructions count branches that a step may not take.",
            markdown(rows),
            "## Prediction",
            "From the figures above and published figures of the GPUs. Not measured.",
            roofline_markdown(rows),
            "## Worse than torch's kernel",
            "\n".join(f"- {line}" for line in worse) or "Nothing.",
        ]
    )
    if args.out:
        write_text(args.out / "inspection.json", json.dumps(_with_versions(rows), indent=1) + "\n")
        write_text(args.out / "inspection.md", text + "\n")
        print(f"wrote {args.out / 'inspection.json'} and {args.out / 'inspection.md'}")
    if args.page:
        page = args.page.read_text()
        for name, block in docs_blocks(rows).items():
            begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
            page = page.split(begin)[0] + begin + block + "\n" + end + page.split(end)[1]
        write_text(args.page, page)
    print(roofline_markdown(rows))
    print("\n".join(["", "worse than torch's kernel:", *(worse or ["nothing"])]))
    return 1 if any(row["spills"] or row["integer_divisions"] for row in rows) else 0


def _with_versions(rows: list[dict[str, object]]) -> dict[str, object]:
    import torch
    import triton  # type: ignore[import-untyped]

    return {"torch": torch.__version__, "triton": triton.__version__, "kernels": rows}
