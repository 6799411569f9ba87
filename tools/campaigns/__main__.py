"""Run campaigns: `python -m campaigns [NAME …] [--n N] [--short] [--more] [--seed S] [--minutes M]`."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from .common import Campaign, Figures, Session, record, store, stored

NAMES = (
    "corruption",
    "endurance",
    "faults",
    "fuzz",
    "hostile",
    "kills",
    "launches",
    "locking",
    "mutation",
    "offline",
)


def load(name: str) -> Campaign:
    """Return one campaign."""
    campaign: Campaign = importlib.import_module(f"campaigns.{name}").CAMPAIGN
    return campaign


def main() -> int:
    """Run the chosen campaigns; exit status 1 if any found a failure."""
    parser = argparse.ArgumentParser(prog="campaigns", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--n", type=int, help="how many trials (default: the campaign's target)")
    parser.add_argument("--short", action="store_true", help="the short form that CI runs; stores nothing")
    parser.add_argument("--more", action="store_true", help="continue from the stored figures")
    parser.add_argument("--minutes", type=float, help="end each campaign after so many minutes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    for name in args.names:
        if name not in NAMES:
            parser.error(f"{name!r} is not one of {', '.join(NAMES)}")
    clean = True
    for campaign in map(load, args.names or NAMES):
        if campaign.short or not args.short:
            clean = _run(campaign, args) and clean
    return 0 if clean else 1


def _end(number: int, frame: object) -> None:
    """Turn SIGTERM into an exit that removes the temporary folder."""
    sys.exit(128 + number)


def _run(campaign: Campaign, args: argparse.Namespace) -> bool:
    """Run one campaign, store and print its figures; return whether it found no failure."""
    figures, earlier = stored(campaign.name) if args.more else (Figures(), 0.0)
    began = time.monotonic()

    def save() -> None:
        if not args.short:
            store(record(campaign, figures, earlier + time.monotonic() - began, args.seed))

    # in memory where that is possible: thousands of flushes to a disk would take most of the time
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="gradcent-campaign-", dir=memory) as folder:
        campaign.run(
            Session(
                n=args.n or (campaign.short if args.short else campaign.target),
                seed=args.seed,
                folder=Path(folder),
                figures=figures,
                end=None if args.minutes is None else began + 60 * args.minutes,
                save=save,
            )
        )
    save()
    print(
        f"{campaign.name}: tried {figures.tried}, lost {figures.lost}, wrong {figures.wrong}, "
        f"silent {figures.silent}, crashed {figures.crashed} in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    for line in figures.failures:
        print(f"  {line}")
    return figures.clean


if __name__ == "__main__":
    sys.exit(main())
