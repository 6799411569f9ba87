"""Repeat random committed runs and compare every number of every epoch and iteration.

    python tools/check_results.py [--runs 3] [--seed N] [--root results/studies] [--data FOLDER] [--unjudged]

The studies are drawn first, then a run of each, so that a study with many runs is not drawn more often. Studies that
measure only times are left out: they have no number that repeats.

On the same kind of machine (processor, instruction set, threads, torch) a run must repeat to the last bit, and anything
else is an error. On another kind rounding differs: the differences are printed, and the exit code is 0. Runs of earlier
versions that recorded no instruction set cannot be judged; they are drawn only with --unjudged.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

CLOCK = ("seconds", "samples_per_second", "seconds_per_step", "memory_mib")
POSITION = frozenset({"step", "epoch"})  # the number of a line, not a result
MACHINE = ("processor", "instruction_set", "threads", "processes", "gpus")
NOT_JUDGED = "recorded no instruction set: a difference cannot be judged"


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
    """Return what must be equal for a run to repeat to the bit; what a run did not record is left out."""
    environment = record.environment
    known = {key: environment[key] for key in MACHINE if key in environment}
    return {**known, "torch": environment.get("versions", {}).get("torch")}


def other_machine(one: Any, two: Any) -> list[str]:
    """Return how the machines of two runs differ, in words; a processor that was not recorded is not compared."""
    first, second = machine(one), machine(two)
    names = [name for name in second if first.get(name) != second[name]]
    return [
        f"{name}: {first.get(name, 'not recorded')} then, {second[name]} now"
        for name in names
        if name in first or name != "processor"
    ]


def numbers(line: dict[str, Any]) -> dict[str, Any]:
    """Return what must repeat of a line: neither times nor the line's number."""
    return {key: value for key, value in line.items() if not key.endswith(CLOCK) and key not in POSITION}


def differences(one: Any, two: Any) -> tuple[list[str], int]:
    """Return the numbers that differ or are missing, the first of each quantity, and how many were compared."""
    lines, compared = [], 0
    if one.initial_weights != two.initial_weights:
        lines.append("initial weights differ")
    for place, before, now in (
        ("line", one.curves, two.curves),
        ("iteration", one.iterations(), two.iterations()),
    ):
        seen: set[str] = set()
        if len(before) != len(now):
            lines.append(f"{len(before)} {place}s then, {len(now)} now")
        for number, (a, b) in enumerate(zip(before, now, strict=False), start=1):
            for key, value in numbers(a).items():
                compared += key in b
                if key in seen or (key in b and _same(value, b[key])):
                    continue
                seen.add(key)
                lines.append(f"{key}, {place} {number}: {value} then, {b.get(key, 'missing')} now")
    return sorted(lines), compared


def _same(one: Any, two: Any) -> bool:
    return bool(one == two or (one != one and two != two))  # nan repeats as nan


def why_not(record: Any, unjudged: bool) -> str:
    """Return why a run cannot be drawn; empty if it can."""
    if not any(numbers(line) for line in record.curves):
        return "has only times, which do not repeat"
    if "instruction_set" not in record.environment and not unjudged:
        return f"{NOT_JUDGED} (--unjudged draws it)"
    return ""


def draw(records: Sequence[Any], count: int, rng: random.Random) -> list[Any]:
    """Draw studies in turn, each as often as the others, and a run of each; no run twice."""
    left: dict[str, list[Any]] = {}
    for record in records:
        left.setdefault(record.study, []).append(record)
    chosen: list[Any] = []
    while left and len(chosen) < count:
        for study in rng.sample(sorted(left), min(len(left), count - len(chosen))):
            chosen.append(left[study].pop(rng.randrange(len(left[study]))))
            if not left[study]:
                del left[study]
    return chosen


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
    parser.add_argument(
        "--unjudged", action="store_true", help="draw also runs that recorded no instruction set"
    )
    args = parser.parse_args(arguments)

    import torch

    from gradcent_lab import store
    from gradcent_lab.data import data_root
    from gradcent_lab.errors import UserError

    torch.set_num_threads(1)  # as the committed runs
    seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(3), "big")
    records = store.load(args.root)
    reasons = [why_not(record, args.unjudged) for record in records]
    candidates = [record for record, reason in zip(records, reasons, strict=True) if not reason]
    left_out = Counter((r.study, reason) for r, reason in zip(records, reasons, strict=True) if reason)
    for (study, reason), count in left_out.items():
        print(f"left out: {study}: {count} runs, {reason}")
    if not candidates:
        raise UserError(f"{args.root} has no run that can be repeated and compared")
    chosen = draw(candidates, args.runs, random.Random(seed))
    print(f"repeating {len(chosen)} of {len(records)} runs in {args.root} (--seed {seed})")
    failed = 0
    for record in chosen:
        arm = f"{record.study}, {record.cell}, {record.arm}, seed {record.seed} ({record.path.name})"
        print(f"  {arm}, which took {record.seconds:.0f} s", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            again = repeat(record, Path(folder), data_root(args.data))
            changed, compared = differences(record, again)
        other = other_machine(record, again)
        if not changed and compared:
            print(f"    equal to the last bit, {compared:,} values")
        elif not compared:
            failed += 1
            print("    NOTHING to compare")
        elif "instruction_set" not in record.environment:
            print(f"    differs; {NOT_JUDGED}")
        elif other:
            print(f"    differs, on another kind of machine ({'; '.join(other)})")
        else:
            failed += 1
            print("    DIFFERS on the same kind of machine")
        for line in changed[:6]:
            print(f"      {line}")
    return int(failed > 0)


if __name__ == "__main__":
    from gradcent_lab.errors import UserError

    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"check_results: {error}")
