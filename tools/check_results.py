"""Repeat random committed runs and compare every number of every epoch.

    python tools/check_results.py [--runs 3] [--seed N] [--root results/studies] [--data FOLDER]

On the same kind of machine (instruction set, threads, torch) a run must repeat to the last bit, and anything else is an
error. On another kind rounding differs: the differences are printed, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

CLOCK = frozenset(
    {
        "seconds",
        "samples_per_second",
        "seconds_per_step",
        "memory_mib",
        "optimizer_seconds",
        "reference_seconds",
        "reference_optimizer_seconds",
    }
)
MACHINE = ("instruction_set", "threads", "processes", "gpus")


def repeat(record: Any, out: Path, data: Path | None) -> Any:
    """Run the configuration of a stored run again, in `out`."""
    from gradcent_lab import recipes
    from gradcent_lab.errors import UserError
    from gradcent_lab.experiment.run_config import Arm, Numerics, RunConfig
    from gradcent_lab.experiment.study import Task
    from gradcent_lab.run.scheduler import run_tasks

    config = record.config
    recipe = recipes.get(record.study.removesuffix("-tuning"))
    again = RunConfig(
        config["study"],
        config["cell"],
        Arm(**config["arm"]),
        config["seed"],
        config["scale"],
        config["settings"],
        Numerics(**config["numerics"]),
        record.recipe,
    )
    if again.run_id != record.path.name:
        raise UserError(f"{record.path}: its configuration now gives the name {again.run_id}")
    return run_tasks([Task(again, partial(recipe.build, config["settings"], data))], out)[0]


def machine(record: Any) -> dict[str, Any]:
    """Return what must be equal for a run to repeat to the bit; what an older run did not record is left out."""
    environment = record.environment
    known = {key: environment[key] for key in MACHINE if key in environment}
    return {**known, "torch": environment.get("versions", {}).get("torch")}


def other_machine(one: Any, two: Any) -> list[str]:
    """Return how the machines of two runs differ, in words."""
    first, second = machine(one), machine(two)
    names = [name for name in second if name not in first or first[name] != second[name]]
    return [f"{name}: {first.get(name, 'not recorded')} then, {second[name]} now" for name in names]


def differences(one: Any, two: Any) -> list[str]:
    """Return the numbers that differ, the first of each quantity."""
    lines, seen = [], set()
    if one.initial_weights != two.initial_weights:
        lines.append("initial weights differ")
    if len(one.curves) != len(two.curves):
        lines.append(f"{len(one.curves)} lines then, {len(two.curves)} now")
    for number, (a, b) in enumerate(zip(one.curves, two.curves, strict=False), start=1):
        for key in a.keys() & b.keys() - CLOCK:
            if a[key] != b[key] and not (a[key] != a[key] and b[key] != b[key]) and key not in seen:
                seen.add(key)
                lines.append(f"{key}, line {number}: {a[key]} then, {b[key]} now")
    return sorted(lines)


def main(arguments: list[str] | None = None) -> int:
    """Repeat and compare; return 1 if a run differs on the same kind of machine."""
    parser = argparse.ArgumentParser(description="Repeat random committed runs and compare every number.")
    parser.add_argument("--runs", type=int, default=3, help="how many (default 3)")
    parser.add_argument(
        "--seed", type=int, default=None, help="chooses the runs (default: another choice every time)"
    )
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parents[1] / "results" / "studies"
    )
    parser.add_argument("--data", type=Path, default=None, help="data folder (default: GRADCENT_DATA)")
    args = parser.parse_args(arguments)

    import torch

    from gradcent_lab import store
    from gradcent_lab.data import data_root

    torch.set_num_threads(1)  # as the committed runs
    seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(3), "big")
    records = store.load(args.root)
    chosen = random.Random(seed).sample(records, min(args.runs, len(records)))
    print(f"repeating {len(chosen)} of {len(records)} runs in {args.root} (--seed {seed})")
    failed = 0
    for record in chosen:
        arm = f"{record.study}, {record.cell}, {record.arm}, seed {record.seed} ({record.path.name})"
        with tempfile.TemporaryDirectory() as folder:
            again = repeat(record, Path(folder), data_root(args.data))
        changed, other = differences(record, again), other_machine(record, again)
        if not changed:
            print(f"  equal to the last bit: {arm}")
        elif other:
            print(f"  differs, on another kind of machine ({'; '.join(other)}): {arm}")
        else:
            failed += 1
            print(f"  DIFFERS on the same kind of machine: {arm}")
        for line in changed[:6]:
            print(f"    {line}")
    return int(failed > 0)


if __name__ == "__main__":
    from gradcent_lab.errors import UserError

    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"check_results: {error}")
