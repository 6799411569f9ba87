"""Break the library on purpose, one line at a time, and see which test notices.

    python tools/mutations.py                  all of them (ten minutes)
    python tools/mutations.py decay half       those with one of these words in their name
    python tools/mutations.py --write …        also put the rows into docs/mutations.md

Each mutation of tools/mutation_list.py is made in a temporary copy of src/ (the kernels are compiled again
where C is touched), and the tests named there run against it until one fails. A failing test counts only if
it passes without the mutation, which is looked at in the end. Exit code 1: a mutation that no test noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch  # noqa: F401  # once, for all the children
from mutation_list import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mutations.md"
HEAD = """# What the tests notice

Each row is one line of the source broken on purpose, and the first test that failed because of it.
Written by `python tools/mutations.py --write`; the exact lines are in `tools/mutation_list.py`.

| broken | file | noticed by |
|---|---|---|
"""


def apply(mutation: Mutation, copy: Path) -> None:
    """Make the mutation in a copy of the tree; it must fit exactly one place."""
    path = copy / "src" / "gradcent" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise SystemExit(
            f"{mutation.name}: its line stands {text.count(mutation.old)} times in {mutation.file}, not once; "
            "correct tools/mutation_list.py"
        )
    path.write_text(text.replace(mutation.old, mutation.new))
    if path.suffix in (".c", ".h"):
        compile_kernels(copy)


def compile_kernels(copy: Path) -> None:
    """Build the C extension of a copy; without the old one, which would stay if the mutation did not compile."""
    for old in (copy / "src/gradcent/kernels").glob("_cpu*.so"):
        old.unlink()
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=copy, capture_output=True, text=True
    )
    if done.returncode or not list((copy / "src/gradcent/kernels").glob("_cpu*.so")):
        raise SystemExit(f"the kernels of a mutation do not compile:\n{done.stderr[-2000:]}")


def failing(tests: list[str], copy: Path, *, first: bool) -> list[str]:
    """Run tests against a copy, in a child that has torch already, and return the names of those that fail."""
    words = [
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=no",
        *(["-x"] if first else []),
        *tests,
    ]
    said = copy / "said.txt"
    child = os.fork()
    if child == 0:
        output = os.open(said, os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["PYTHONPATH"] = str(copy / "src")  # tests start processes, too
        sys.path.insert(0, str(copy / "src"))
        code = pytest.main(words)
        sys.stdout.flush()
        os._exit(int(code))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = said.read_text(errors="replace")
    found = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", text, re.MULTILINE)
    if code not in (0, 1) and not found:
        raise SystemExit(f"pytest could not run {' '.join(tests)}:\n{text[-2000:]}")
    return found


def fresh_copy(folder: Path) -> Path:
    """Copy what a build needs; the compiled kernels come along, so that only C mutations compile."""
    copy = folder / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def write(rows: dict[str, str]) -> None:
    """Put rows into the page, in the list's order; rows of mutations that did not run now stay."""
    there = PAGE.read_text().splitlines() if PAGE.exists() else []
    known = {line.strip("| ").split(" | ")[0]: line for line in there if line.startswith("| ")} | rows
    lines = [known[each.name] for each in MUTATIONS if each.name in known]
    missed = sum("**no test**" in line for line in lines)
    PAGE.write_text(
        f"{HEAD}{chr(10).join(lines)}\n\n{len(lines)} mutations, {len(lines) - missed} noticed.\n"
    )


def main() -> int:
    """Run the mutations asked for."""
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    words = [word for word in sys.argv[1:] if word != "--write"]
    chosen = [each for each in MUTATIONS if not words or any(word in each.name for word in words)]
    rows: dict[str, str] = {}
    noticed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mutation in chosen:
            began = time.monotonic()
            copy = fresh_copy(Path(folder))
            apply(mutation, copy)
            found = failing(mutation.tests.split(), copy, first=True)
            if found:
                noticed[mutation.name] = found[0]
            by = f"`{found[0].removeprefix('tests/')}`" if found else "**no test**"
            rows[mutation.name] = f"| {mutation.name} | `{mutation.file}` | {by} |"
            print(f"{rows[mutation.name]}  {time.monotonic() - began:.0f} s", flush=True)
            if "--write" in sys.argv:
                write(rows)
        sound = (
            failing(sorted(set(noticed.values())), fresh_copy(Path(folder)), first=False) if noticed else []
        )
    for name, test in noticed.items():
        if test in sound:
            print(f"{name}: {test} fails without the mutation too, and shows nothing")
            rows[name] = f"| {name} | | **no test** |"
    if "--write" in sys.argv:
        write(rows)
    missed = [each.name for each in chosen if each.name not in noticed or noticed[each.name] in sound]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} noticed", *missed, sep="\n  ")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
