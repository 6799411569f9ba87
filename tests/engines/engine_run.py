"""Runs every engine and framework test, each framework in an environment of its own, and writes the matrix page.

    python tests/engines/engine_run.py            # what `make test-engines` does
    python tests/engines/engine_run.py lightning  # one part of it

Facts go to results/engines.jsonl, one line per verified fact; docs/engines-matrix.md is made from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
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
}


def main(names: list[str]) -> int:
    """Run the tests, keep what they verified, write the page; return the number of failed runs."""
    unknown = set(names) - ENVIRONMENTS.keys()
    if unknown:
        raise SystemExit(f"unknown part {min(unknown)}; choose from {', '.join(ENVIRONMENTS)}")
    failed = []
    for name in names or list(ENVIRONMENTS):
        start = time.monotonic()
        try:
            python = environment(name)
        except subprocess.CalledProcessError as error:
            write(
                name, [{"environment": name, "missing": f"pip could not install it: {error.stderr[-200:]}"}]
            )
            failed.append(name)
            continue
        found, code = run(name, python)
        write(name, found)  # after each part, so that an interrupted run keeps what it has
        if code:
            failed.append(name)
        print(f"{name}: {len(found)} facts, {time.monotonic() - start:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return len(failed)


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
        command = [str(python), "-m", "pip", "install", "--quiet", *ENVIRONMENTS[name]]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (folder / ".ready").touch()
    return str(python)


def run(name: str, python: str) -> tuple[list[dict[str, Any]], int]:
    """Run an environment's tests and return the facts they verified."""
    apart = [f"test_framework_{each}.py" for each in ENVIRONMENTS] + ["test_engine_processes.py"]
    if name == "base":
        files = sorted(str(each) for each in HERE.glob("test_*.py") if each.name not in apart)
    elif not ENVIRONMENTS[name]:
        files = [str(HERE / "test_engine_processes.py"), "-k", "fsdp2" if name == "fsdp2" else "not fsdp2"]
    else:
        files = [str(HERE / f"test_framework_{name}.py")]
    path = FACTS.with_name(f"engines-{name}.part")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    variables = {
        **os.environ,
        "GRADCENT_MATRIX": str(path),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *files], env=variables, cwd=ROOT, check=False
    )
    facts = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return [{"environment": name, **each} for each in facts], done.returncode


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
        "drift of any weight vector's mean, where the line says that sums stay). Float64 unless it says otherwise.",
        "",
        "| engine | version | verified | largest difference | date |",
        "|---|---|---|---|---|",
    ]
    for each in facts:
        if "missing" in each:
            lines.append(f"| {each['environment']} | – | not run: {each['missing']} | – | – |")
            continue
        version = f"{each['package']} {each['version']}"
        if each["package"] != "torch":
            version += f", torch {each['torch']}"
        what = each["what"].replace("|", "\\|")
        lines.append(f"| {each['engine']} | {version} | {what} | {each['difference']:.1e} | {each['date']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
