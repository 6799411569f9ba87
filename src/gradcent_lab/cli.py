"""The `gradcent` command: a table of subcommands; a subcommand is imported when it is used.

`gradcent --help` must be fast, so nothing here imports torch: a subcommand adds its options in `configure` and
imports what it needs in `run`.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence

from gradcent_lab.errors import UserError
from gradcent_lab.names import printable
from gradcent_lab.run import stop_signal

# name, one-line help; the module is gradcent_lab.commands.<name>, with _ for -
COMMANDS: dict[str, str] = {
    "explain": "show which parameters of a model GC centralizes, and why not the others",
    "demo": "what GC does in three small cases; about 30 seconds",
    "forecast": "estimate what GC would do to your model from a few steps; about a minute",
    "compare": "compare your own model with and without GC",
    "run": "run a recipe: an experiment of the paper, at its scale or a smaller one",
    "list": "list the recipes, their costs and what has run",
    "bench": "measure the cost of an optimizer step with GC on this machine",
    "inspect-kernels": "count registers, access widths and instructions of the GPU kernels, without a GPU",
    "doctor": "check installed packages, hardware and data sets",
    "report": "compare stored runs with the paper's numbers, in one HTML page",
}

_ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EACCES: "choose another folder with --out",
    errno.EPERM: "choose another folder with --out",
    errno.EROFS: "choose another folder with --out",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser; only the subcommand `only` gets its options, so that the others are not imported."""
    parser = argparse.ArgumentParser(
        prog="gradcent",
        description="Gradient centralization (GC): what it does to a model, what it costs, whether it helps.",
        epilog="`gradcent COMMAND --help` shows the options of a command.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == only:
            module = importlib.import_module(f"gradcent_lab.commands.{name.replace('-', '_')}")
            module.configure(command)
            command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `gradcent` command and return its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in argv if word in COMMANDS), None)
    parser = build_parser(chosen)
    args = parser.parse_args(argv)
    if args.version:
        from importlib.metadata import version

        print(f"gradcent {version('gradcent')}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    try:
        with stop_signal.handled():
            status = int(args.run(args) or 0)
            sys.stdout.flush()
            return status
    except UserError as error:
        print(f"gradcent {args.command}: {printable(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # the reader of the output has gone (`gradcent explain … | head`); keep Python from flushing into it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None and error.errno not in _ADVICE:
            raise  # not about a file
        advice = _ADVICE.get(error.errno or 0, "check the disk and run again")
        where = printable(error.filename or "the disk")
        print(f"gradcent {args.command}: {error.strerror}: {where}: {advice}", file=sys.stderr)
        return 2
    except stop_signal.Terminated:
        print(
            f"gradcent {args.command}: terminated; the same command continues from the last checkpoint",
            file=sys.stderr,
        )
        return 143
    except KeyboardInterrupt:
        print(f"gradcent {args.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
