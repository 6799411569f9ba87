"""Options that several commands share."""

from __future__ import annotations

import argparse


def non_negative(text: str) -> float:
    """Read a finite number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: give a number of 0 or more")
    return value


def add_checkpoint_seconds(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint-seconds`."""
    parser.add_argument(
        "--checkpoint-seconds",
        type=non_negative,
        default=30.0,
        metavar="S",
        help="at most this much work is lost by a kill (default 30; 0 writes after every step)",
    )
