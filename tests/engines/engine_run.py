"""Runs every engine and framework test, each framework in an environment of its own, and writes the matrix page.

    python tests/engines/engine_run.py            # what `make test-engines` does
    python tests/engines/engine_run.py lightning  # one part of it

Facts go to results/engines.jsonl, one line per verified fact and one per run of a part; docs/engines-matrix.md
is made from it. A part that was not run keeps its lines and their dates; one that failed says so there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FACTS, PAGE = ROOT / "results" / "engines.jsonl", ROOT / "docs" / "engines-matrix.md"
# environment → what pip installs beside this environment's own packages; nothing: this one itself
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "base": (),
    "fsdp2": (),
    "processes": (),
    "lightning": ("lightning",),
    "jax": ("jax", "optax", "flax", "equinox"),
    "fastai": ("fastai",),
    "mmengine": ("mmengine",),
    "deepspeed": ("deepspeed",),
    "ultralytics": ("ultralytics",),
    "keras": ("keras",),
    "torchtitan": ("torchtitan",),
    "trackers": ("trackio", "mlflow-skinny", "wandb"),
}
LIMIT = 900  # seconds for one part; all of them take far less than this together


def main(names: list[str]) -> int:
    """Run the tests, keep what they verified, write the page; return the number of failed parts."""
    unknown = set(names) - ENVIRONMENTS.keys()
    if unknown:
        raise SystemExit(f"unknown part {min(unknown)}; choose from {', '.join(ENVIRONMENTS)}")
    if FACTS.exists():  # a page of another form is made anew first: a test compares the two
        PAGE.write_text(page([json.loads(line) for line in FACTS.read_text().splitlines()]))
    runs: list[dict[str, Any]] = []
    for name in names or list(ENVIRONMENTS):
        start = time.monotonic()
        try:
            python = environment(name)
        except (subprocess.CalledProcessError, OSError) as error:
            why = (getattr(error, "stderr", None) or str(error)).strip()[-200:]
            facts, outcome = [], {"failed": f"its environment could not be made: {why}"}
        else:
            start = time.monotonic()
            facts, outcome = run(name, python)
        outcome |= {"seconds": round(time.monotonic() - start), "date": today()}
        runs.append({"environment": name, "run": outcome})
        write(name, [runs[-1], *facts])  # after each part, so that an interrupted run keeps what it has
    width = max(len(each["environment"]) for each in runs)
    for each in runs:
        print(f"{each['environment']:{width}}  {each['run']['seconds']:5d} s  {_words(each['run'])}")
    failed = [each["environment"] for each in runs if "failed" in each["run"]]
    seconds = sum(each["run"]["seconds"] for each in runs)
    print(f"{len(runs)} parts, {seconds} s; {'failed: ' + ', '.join(failed) if failed else 'all passed'}")
    return len(failed)


def today() -> str:
    """Return the date, as the facts have it."""
    return datetime.now(tz=UTC).date().isoformat()


def environment(name: str) -> str:
    """Return the Python of an environment; one that is not there yet is made, seeing this one's packages."""
    if not ENVIRONMENTS[name]:
        return sys.executable
    folder = Path(os.environ.get("GRADCENT_ENGINES", Path(sys.prefix) / "engines")) / name
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        inside = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        (inside / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pinned = ("--constraint", str(ROOT / "requirements" / "engines.txt"))
        command = [str(python), "-m", "pip", "install", "--quiet", *pinned, *ENVIRONMENTS[name]]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (folder / ".ready").touch()
    return str(python)


def run(name: str, python: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run a part's tests; return the facts they verified, and how many passed or why it failed."""
    apart = [f"test_framework_{each}.py" for each in ENVIRONMENTS] + ["test_engine_processes.py"]
    if name == "base":
        files = sorted(str(each) for each in HERE.glob("test_*.py") if each.name not in apart)
    elif not ENVIRONMENTS[name]:
        files = [str(HERE / "test_engine_processes.py"), "-k", "fsdp2" if name == "fsdp2" else "not fsdp2"]
    else:
        files = [str(HERE / f"test_framework_{name}.py")]
    path, log = (FACTS.with_name(f"engines-{name}.{each}") for each in ("part", "xml"))
    path.parent.mkdir(exist_ok=True)
    for each in (path, log):
        each.unlink(missing_ok=True)
    variables = {
        **os.environ,
        "GRADCENT_MATRIX": str(path),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={log}", *files]
    try:
        code = subprocess.run(command, env=variables, cwd=ROOT, check=False, timeout=LIMIT).returncode
    except subprocess.TimeoutExpired:
        code = -1
    facts = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    outcome = _outcome(log, code, len(facts))
    for each in (path, log):
        each.unlink(missing_ok=True)
    return [{"environment": name, **each} for each in facts], outcome


def _outcome(log: Path, code: int, facts: int) -> dict[str, Any]:
    """Read pytest's report. A part that verified nothing (its package cannot be imported) has failed, too."""
    if code == -1:
        return {"failed": f"stopped after {LIMIT} s"}
    if not log.exists():
        return {"failed": f"pytest ended with code {code} and left no report"}
    cases = list(ElementTree.parse(log).getroot().iter("testcase"))
    bad = [each.get("name", "?") for each in cases if {"failure", "error"} & {part.tag for part in each}]
    skipped = sum(part.tag == "skipped" for each in cases for part in each)
    outcome: dict[str, Any] = {"passed": len(cases) - len(bad) - skipped, "skipped": skipped}
    if bad:
        outcome["failed"] = f"{len(bad)} of {len(cases)} tests: {', '.join(bad[:5])}"
    elif code:
        outcome["failed"] = f"pytest ended with code {code}"
    elif not facts:
        outcome["failed"] = "nothing was verified: is the package installed and does it import?"
    return outcome


def _words(run: dict[str, Any]) -> str:
    counts = f"{run.get('passed', 0)} passed, {run.get('skipped', 0)} skipped"
    return f"**failed**: {run['failed']}; {counts}" if "failed" in run else counts


def write(name: str, facts: list[dict[str, Any]]) -> None:
    """Replace the facts of the part that ran (one that failed must not keep old ones), and make the page anew."""
    before = [json.loads(line) for line in FACTS.read_text().splitlines()] if FACTS.exists() else []
    kept = [each for each in before if each["environment"] != name] + facts
    order = list(ENVIRONMENTS)
    kept.sort(key=lambda each: order.index(each["environment"]))
    FACTS.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in kept))
    PAGE.write_text(page(kept))


def page(facts: list[dict[str, Any]]) -> str:
    """Return the matrix page."""
    lines = [
        "# What was verified, where",
        "",
        "Made by `make test-engines` from the tests that ran (`results/engines.jsonl`); do not edit. The difference",
        "is the largest of any weight after training, against GC written out by hand in one process (or the",
        "drift of any weight vector's mean, where the line says that sums stay; or a count, where it says",
        "what is counted). Float64 unless it says otherwise.",
        "",
        "| part | tests | seconds | date |",
        "|---|---|---|---|",
    ]
    for each in facts:
        if "run" in each:
            run = each["run"]
            lines.append(
                f"| {each['environment']} | {_cell(_words(run))} | {run['seconds']} | {run['date']} |"
            )
    never = [name for name in ENVIRONMENTS if not any(each["environment"] == name for each in facts)]
    lines += [f"| {name} | not run yet | – | – |" for name in never]
    lines += ["", "| engine | version | verified | largest difference | date |", "|---|---|---|---|---|"]
    for each in facts:
        if "run" in each:
            continue
        version = f"{each['package']} {each['version']}"
        if each["package"] != "torch":
            version += f", torch {each['torch']}"
        what = _cell(each["what"])
        lines.append(f"| {each['engine']} | {version} | {what} | {each['difference']:.1e} | {each['date']} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
