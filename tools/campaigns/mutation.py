"""Campaign 9: change the meaning of one expression of the source at a time, and see whether a test fails.

Mutants are generated from the syntax tree (campaigns/mutants.py), so refactoring does not break the list. A
random sample is taken, the same number from every file. First the tests run once with every statement of the
files marked, which tells the tests that execute a statement. A mutant is judged by those tests alone, the fast
ones first (campaigns/mutation_tests.py). A mutant that makes them take too long counts as killed. Survivors are
listed with what they change; campaigns/survivors.py explains those that change nothing a user could notice.

A continued campaign (`--more`) first judges the stored survivors again, by the tests of today. `killed when first
tried` stays as it was: the tests written for the survivors of a sample say nothing about the mutants outside it.
"""

from __future__ import annotations

import random
from pathlib import Path

from . import mutants
from .common import ROOT, Campaign, Figures, Session
from .mutation_tests import Outcome, Suite

SURVIVED = (Outcome.SURVIVED, Outcome.NOT_EXECUTED)
LIBRARY_TESTS = [
    "tests/test_operator.py",
    "tests/test_half.py",
    "tests/test_nonfinite.py",
    "tests/test_plan.py",
    "tests/plan/test_roles.py",
    "tests/plan/test_first_batch.py",
    "tests/plan/test_tracing.py",
    "tests/test_overrides.py",
    "tests/test_refusals.py",
    "tests/test_lifecycle.py",
    "tests/test_switches.py",
    "tests/test_reported_defects.py",
    "tests/test_decay_kinds.py",
    "tests/test_contract.py",
]
LAB_TESTS = ["tests/lab/store", "tests/lab/analysis/test_statistics.py", "tests/lab/test_names.py"]
LIBRARY = [
    f"src/gradcent/{name}.py"
    for name in ("operator", "layout", "plan/planner", "plan/plan", "plan/rules", "attach", "attachment")
]
LAB = [
    "src/gradcent_lab/analysis/statistics.py",
    *(
        f"src/gradcent_lab/store/{name}.py"
        for name in (
            "integrity",
            "record_types",
            "run_lock",
            "atomic_files",
            "records",
            "pairs",
            "process_identity",
        )
    ),
]


def run(session: Session) -> None:
    """Judge the survivors of earlier sessions again, then try mutants, one file after the other, until the end."""
    figures = session.figures
    survivors: list[str] = figures.details.setdefault("survivors", [])
    queue = _queue(session.seed)
    figures.details.setdefault("mutants that exist", len(queue))
    files = {file for file, _ in queue[figures.tried : session.n]}
    files |= {_file(survivor) for survivor in survivors}
    suites = {
        file: suite
        for group, tests in ((LIBRARY, LIBRARY_TESTS), (LAB, LAB_TESTS))
        if files & set(group)
        for suite in [Suite(group, tests)]
        for file in group
    }
    for suite in set(suites.values()):
        suite.import_modules()
    for survivor in list(survivors):
        if session.time_is_over:
            return
        _judge_again(survivor, suites[_file(survivor)], figures)
    for file, number in queue[figures.tried :]:
        if not session.goes_on():
            break
        mutant = mutants.mutant((ROOT / file).read_text(), number)
        outcome = suites[file].judge(file, mutant)
        figures.tried += 1
        name, survived = Path(file).name, outcome in SURVIVED
        figures.count(f"{name}, {'survived' if survived else 'killed'} when first tried")
        figures.count(outcome.value)
        if survived:
            survivors.append(f"{name}:{mutant.line}: {mutant.change}")
        else:
            figures.count("killed when first tried")


def _judge_again(survivor: str, suite: Suite, figures: Figures) -> None:
    """Take a survivor off the list if today's tests kill it, or if its code is gone."""
    file = _file(survivor)
    _, line, change = survivor.split(":", 2)
    same = [m for m in mutants.mutants((ROOT / file).read_text()) if m.change == change.strip()]
    if not same:
        figures.count("survivors whose code was removed")
    elif suite.judge(file, min(same, key=lambda mutant: abs(mutant.line - int(line)))) in SURVIVED:
        return
    else:
        figures.count("survivors killed by later tests")
    figures.details["survivors"].remove(survivor)


def _file(survivor: str) -> str:
    """Return the path of a survivor's file; the names of the files differ."""
    name = survivor.partition(":")[0]
    return next(file for file in (*LIBRARY, *LAB) if Path(file).name == name)


def _queue(seed: int) -> list[tuple[str, int]]:
    """Every mutant as (file, number): a random one of the first file, of the second, and so on in turn."""
    rng = random.Random(seed)
    columns = []
    for file in [*LIBRARY, *LAB]:
        numbers = list(range(mutants.count((ROOT / file).read_text())))
        rng.shuffle(numbers)
        columns.append([(file, number) for number in numbers])
    longest = max(map(len, columns))
    return [column[at] for at in range(longest) for column in columns if at < len(column)]


CAMPAIGN = Campaign(
    "mutation",
    "meaning of one expression changed at a time in operator, layout, plan, attach, statistics and store",
    run,
    target=300,
    short=0,  # tests/lab/test_campaigns.py judges one mutant
)
