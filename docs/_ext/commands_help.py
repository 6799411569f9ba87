"""The help texts of every subcommand, as `gradcent COMMAND --help` prints them at 90 columns."""

from __future__ import annotations

import os


def markdown() -> str:
    """Return one section per command."""
    from gradcent_lab.cli import COMMANDS, build_parser

    lines = []
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "90"  # argparse wraps at the width of the terminal
    try:
        for name in COMMANDS:
            commands = build_parser(name)._subparsers._group_actions[0].choices
            lines += [f"## gradcent {name}", "", "```text", commands[name].format_help().rstrip(), "```", ""]
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join(lines)
