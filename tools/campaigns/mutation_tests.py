"""Tests against a mutant: in a forked process that imports the mutant instead of the module's file.

The parent process imports torch, pytest and whatever else the tests import, but never gradcent, so that every
child imports it anew.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .common import ROOT
from .mutants import Mutant, instrumented

PATIENCE = 240.0  # seconds for the tests of one mutant, whatever they compute
FULL = 40.0  # processor seconds of tests that a mutant is judged by at most
# packages that are safe to import before a fork; others start threads or check the hardware
SHARED = (
    "accelerate",
    "matplotlib",
    "numpy",
    "PIL",
    "rich",
    "scipy",
    "sympy",
    "torch",
    "torchvision",
)


class Outcome(enum.Enum):
    """What became of a mutant."""

    FAILED = "killed by a failing test"
    TOO_LONG = "killed by the time limit"
    NOT_EXECUTED = "survived: no test executes the line"
    SURVIVED = "survived: the tests pass"


class Suite:
    """Test files and which of their tests execute which statement of some source files."""

    def __init__(self, files: Sequence[str], tests: Sequence[str]) -> None:
        if "gradcent" in sys.modules:
            raise SystemExit("mutation: run it in a process of its own, which has not imported gradcent")
        self.tests = list(tests)
        sources = {_module(file): instrumented((ROOT / file).read_text(), "__hit__") for file in files}
        status, report = _run(sources, self.tests, None, 600)
        if status != 0:
            reason = report.get("failed") or report.get("output")
            raise SystemExit(f"mutation: the tests fail without any mutant (status {status}): {reason}")
        self.seconds: dict[str, float] = report["seconds"]
        self.hits: dict[str, dict[str, list[str]]] = report["hits"]
        self.modules: list[str] = report["modules"]

    def import_modules(self) -> None:
        """Import the modules of other projects that the tests use: once, instead of in every child.

        Then judge a source that is not changed, which must survive.
        """
        for name in self.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        status, report = _run({}, self.tests, sorted(self.seconds, key=self.seconds.__getitem__)[-5:], 300)
        if status != 0:
            raise SystemExit(f"mutation: the tests fail in a fork (status {status}): {report}")

    def covering(self, file: str, statement: int) -> list[str]:
        """Return the tests that execute a statement, fast ones first; all tests for one that the import executes."""
        every = (
            list(self.seconds) if statement == 0 else self.hits.get(_module(file), {}).get(str(statement), [])
        )
        chosen, total = [], 0.0
        for test in sorted(every, key=self.seconds.__getitem__):
            total += self.seconds[test]
            if chosen and total > FULL:
                break
            chosen.append(test)
        return chosen

    def judge(self, file: str, mutant: Mutant) -> Outcome:
        """Run the tests that execute the mutated statement."""
        chosen = self.covering(file, mutant.statement)
        if not chosen:
            return Outcome.NOT_EXECUTED
        limit = int(20 + 5 * sum(self.seconds[test] for test in chosen))
        status, report = _run({_module(file): mutant.source}, self.tests, chosen, limit)
        if status is None or status == -signal.SIGXCPU:
            return Outcome.TOO_LONG
        # pytest's 1: a test fails; 2: the mutant cannot be imported; negative: it crashes the process
        if status > 2:
            raise SystemExit(f"mutation: the tests did not run (status {status}): {report}")
        return Outcome.SURVIVED if status == 0 else Outcome.FAILED


def _module(file: str) -> str:
    return file.removeprefix("src/").removesuffix(".py").replace("/", ".")


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports some modules from other source texts than their files."""

    def __init__(self, sources: dict[str, str], hit: Callable[[str], Callable[[int], None]]) -> None:
        self.sources, self.hit = sources, hit

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return a spec for the modules with another source."""
        if name not in self.sources:
            return None
        file = ROOT / "src" / (name.replace(".", "/") + ".py")
        return importlib.util.spec_from_file_location(name, file, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the other source."""
        module.__dict__["__hit__"] = self.hit(module.__name__)
        exec(compile(self.sources[module.__name__], str(module.__file__), "exec"), module.__dict__)


class _Plugin:
    """Chooses tests, and notes what they execute and how long they compute."""

    def __init__(self, chosen: list[str] | None) -> None:
        self.chosen, self.current, self.failed = chosen, "", ""
        self.hits: dict[str, dict[int, set[str]]] = {}
        self.seconds: dict[str, float] = {}

    def hit(self, module: str) -> Callable[[int], None]:
        """Return the function that marks a statement of `module` as executed by the current test."""
        lines = self.hits.setdefault(module, {})

        def mark(line: int) -> None:
            lines.setdefault(line, set()).add(self.current)

        return mark

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the chosen tests, in the order of the choice."""
        if self.chosen is not None:
            by_name = {item.nodeid: item for item in items}
            items[:] = [by_name[name] for name in self.chosen if name in by_name]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note which test begins."""
        self.current, self._began = nodeid, time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note how long it computed and whether it failed."""
        self.seconds[report.nodeid] = time.process_time() - self._began
        if report.failed:
            self.failed = self.failed or report.nodeid

    def document(self, before: set[str]) -> dict[str, Any]:
        """Return the notes as JSON values, with the modules of other projects that the tests imported."""
        modules = [name for name in sys.modules if name not in before and name.split(".")[0] in SHARED]
        hits = {
            module: {line: sorted(tests - {""}) for line, tests in lines.items() if tests - {""}}
            for module, lines in self.hits.items()
        }
        return {"hits": hits, "seconds": self.seconds, "failed": self.failed, "modules": modules}


def _run(
    sources: dict[str, str], tests: list[str], chosen: list[str] | None, limit: int
) -> tuple[int | None, dict[str, Any]]:
    """Run tests in a forked process with other sources; return the status (None: too long) and the plugin's notes."""
    import pytest  # noqa: F401  (imported once, before the forks)
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        child = os.fork()
        if child == 0:
            _child(sources, tests, chosen, limit, out)
        end = time.monotonic() + max(PATIENCE, limit)
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None, {}
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the tests started and left
        output = (Path(folder) / "output").read_text(errors="replace")[-2000:]
        report = json.loads(out.read_text()) if out.exists() else {"output": output}
        return os.waitstatus_to_exitcode(status), report


def _child(
    sources: dict[str, str], tests: list[str], chosen: list[str] | None, limit: int, out: Path
) -> None:
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(out.with_name("output"), os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(output, stream)
        for name in [name for name in os.environ if name.startswith("PYTEST_")]:
            del os.environ[name]  # of the run that this one is part of
        os.chdir(ROOT)
        sys.path[:0] = [str(ROOT / "src")]
        before = set(sys.modules)
        plugin = _Plugin(chosen)
        sys.meta_path.insert(0, _Sources(sources, plugin.hit))
        import pytest

        quick = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--no-header"]
        files = tests if chosen is None else sorted({name.partition("::")[0] for name in chosen})
        status = int(pytest.main([*quick, *files], plugins=[plugin]))
        out.write_text(json.dumps(plugin.document(before)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
