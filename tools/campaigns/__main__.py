"""Run campaigns: `python -m campaigns [NAME …] [--n N] [--short] [--seed S] [--minutes M]`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

from .common import Campaign, record, set_time_limit, store

NAMES = ("corruption", "endurance", "faults", "fuzz", "hostile", "kills", "locking", "mutation", "offline")


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
    parser.add_argument("--minutes", type=float, help="end each campaign after so many minutes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in args.names:
        if name not in NAMES:
            parser.error(f"{name!r} is not one of {', '.join(NAMES)}")
    clean = True
    for name in args.names or NAMES:
        campaign = load(name)
        if args.short and not campaign.short:
            continue
        n = args.n or (campaign.short if args.short else campaign.target)
        # in memory where that is possible: thousands of flushes to a disk would take most of the time
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryDirectory(prefix="gradcent-campaign-", dir=memory) as folder:
            set_time_limit(None if args.minutes is None else 60 * args.minutes)
            began = time.monotonic()
            figures = campaign.run(n, args.seed, Path(folder))
        document = record(campaign, figures, time.monotonic() - began, args.seed)
        print(
            f"{name}: tried {figures.tried}, lost {figures.lost}, wrong {figures.wrong}, silent {figures.silent}, "
            f"crashed {figures.crashed} in {document['seconds']} s",
            flush=True,
        )
        for line in figures.failures:
            print(f"  {line}")
        if not args.short:
            print(f"  {os.path.relpath(store(document))}")
        clean = clean and figures.clean
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
