"""Campaign 9: change the meaning of one expression of the source at a time, and see whether a test fails.

Mutants are generated from the syntax tree (campaigns/mutants.py), so refactoring does not break the list. A
random sample is taken, the same number from every file. A mutant whose tests take too long counts as killed.
Survivors are listed with what they change; those known to be equivalent are explained in `EXPLAINED`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from .common import ROOT, Campaign, Figures, time_is_over
from .mutants import Mutant, mutants

LIBRARY = "src/gradcent"
LAB = "src/gradcent_lab"
TESTS = {
    f"{LIBRARY}/operator.py": "tests/test_operator.py tests/test_half.py tests/test_nonfinite.py",
    f"{LIBRARY}/layout.py": "tests/test_plan.py tests/test_overrides.py tests/test_operator.py",
    f"{LIBRARY}/plan/planner.py": "tests/test_plan.py tests/test_overrides.py tests/test_refusals.py",
    f"{LIBRARY}/plan/plan.py": "tests/test_plan.py tests/test_overrides.py tests/test_refusals.py",
    f"{LIBRARY}/plan/rules.py": "tests/test_plan.py tests/test_overrides.py",
    f"{LIBRARY}/attach.py": "tests/test_lifecycle.py tests/test_refusals.py tests/test_switches.py tests/test_reported_defects.py",
    f"{LAB}/analysis/statistics.py": "tests/lab/analysis/test_statistics.py",
    f"{LAB}/store/integrity.py": "tests/lab/store/test_integrity.py",
    f"{LAB}/store/record_types.py": "tests/lab/store/test_integrity.py",
    f"{LAB}/store/run_lock.py": "tests/lab/store/test_locks.py",
    f"{LAB}/store/atomic_files.py": "tests/lab/store/test_store.py tests/lab/store/test_integrity.py",
    f"{LAB}/store/records.py": "tests/lab/store/test_store.py tests/lab/store/test_integrity.py",
}
PATIENCE = 240.0  # seconds for the tests of one mutant

# survivors that change nothing a test could see: (file, change) -> why
EXPLAINED: dict[tuple[str, str], str] = {}


def run(n: int, seed: int, folder: Path) -> Figures:
    """Try `n` mutants, spread evenly over the files."""
    import pytest  # noqa: F401  (imported once, before the forks)
    import torch

    torch.set_num_threads(1)
    figures, rng = Figures(), random.Random(seed)
    queues: dict[str, list[Mutant]] = {}
    for file in TESTS:
        if not (ROOT / file).exists():
            continue
        found = list(mutants((ROOT / file).read_text()))
        rng.shuffle(found)
        queues[file] = found
    figures.details["mutants that exist"] = sum(map(len, queues.values()))
    tree = _copy_tree(folder)
    survivors = []
    while figures.tried < n and any(queues.values()) and not time_is_over():
        for file, queue in queues.items():
            if not queue or figures.tried >= n or time_is_over():
                continue
            mutant = queue.pop()
            figures.tried += 1
            (tree / file).write_text(mutant.source)
            killed = _fails(tree, TESTS[file].split())
            shutil.copy(ROOT / file, tree / file)
            figures.count(f"{Path(file).name}, killed" if killed else f"{Path(file).name}, survived")
            if not killed:
                why = EXPLAINED.get((file, mutant.change), "")
                survivors.append(
                    f"{Path(file).name}:{mutant.line}: {mutant.change}" + (f" ({why})" if why else "")
                )
    figures.details["killed"] = figures.tried - len(survivors)
    figures.details["survivors"] = survivors
    return figures


def _copy_tree(folder: Path) -> Path:
    tree = folder / "tree"
    tree.mkdir()
    for name in ("src", "tests", "tools", "results", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree / path.name)
    return tree


def _fails(tree: Path, tests: list[str]) -> bool:
    """Whether any of `tests` fails against the copy."""
    for test in tests:
        if not (tree / test).exists():
            raise FileNotFoundError(f"{test} has moved: correct TESTS")
    quick = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--no-header"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]  # of the run that this one is part of
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *quick, *tests],
            cwd=tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


CAMPAIGN = Campaign(
    "mutation",
    "meaning of one expression changed at a time in operator, layout, plan, attach, statistics and store",
    run,
    target=600,
    short=0,  # tests/lab/test_campaigns.py checks the generator and one mutant instead
)
