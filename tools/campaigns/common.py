"""What all campaigns share: the figures, one session of a campaign, and its stored record."""

from __future__ import annotations

import datetime
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "results" / "campaigns"
TOY = ROOT / "tests" / "lab"  # the tiny experiment that child processes import
CHANGING = {"seconds", "samples_per_second"}  # the only fields of a curve that two equal runs may differ in


@dataclass
class Figures:
    """Counts of a campaign: `lost` work, `wrong` results, damage accepted `silent`ly, `crashed` with a traceback."""

    tried: int = 0
    lost: int = 0
    wrong: int = 0
    silent: int = 0
    crashed: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)  # descriptions of the first few

    def fail(self, kind: str, description: str) -> None:
        """Count a failure of one kind and keep its description."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.failures) < 20:
            self.failures.append(f"{kind}: {description}")

    def count(self, name: str, number: int = 1) -> None:
        """Add to one of the details."""
        self.details[name] = self.details.get(name, 0) + number

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.lost or self.wrong or self.silent or self.crashed)


@dataclass
class Session:
    """One session of a campaign: try until `figures.tried` is `n` or the time is over.

    `figures` starts with those of earlier sessions when a campaign continues, so a campaign adds to them and
    tries nothing twice.
    """

    n: int
    seed: int
    folder: Path  # for temporary files
    figures: Figures = field(default_factory=Figures)
    end: float | None = None  # on the clock of time.monotonic
    save: Callable[[], None] | None = None  # called now and then, so that a killed campaign keeps its figures
    _saved: float = field(default_factory=time.monotonic)

    @property
    def time_is_over(self) -> bool:
        """Whether the session should end, though it has not tried all it was asked to."""
        return self.end is not None and time.monotonic() > self.end

    def goes_on(self) -> bool:
        """Whether to try once more; stores the figures every 20 seconds."""
        if self.save is not None and time.monotonic() - self._saved > 20:
            self.save()
            self._saved = time.monotonic()
        return self.figures.tried < self.n and not self.time_is_over

    def rng(self) -> random.Random:
        """Return a generator whose numbers no earlier session of the campaign has drawn."""
        return random.Random(f"{self.seed} {self.figures.tried}")


@dataclass(frozen=True)
class Campaign:
    """One campaign: `run` tries about `session.n` things; `short` is n in CI, `target` the goal."""

    name: str
    title: str
    run: Callable[[Session], None]
    target: int
    short: int


def record(campaign: Campaign, figures: Figures, seconds: float, seed: int) -> dict[str, Any]:
    """Return what is stored of a campaign."""
    return {
        "name": campaign.name,
        "title": campaign.title,
        "target": campaign.target,
        **asdict(figures),
        "seed": seed,
        "seconds": round(seconds, 1),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "machine": machine(),
    }


def machine() -> str:
    """Return the kind of machine, without its name."""
    import torch

    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    gpus = f", {torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else ", no GPU"
    return f"{platform.system()}, {processor}, {os.cpu_count()} cores{gpus}, torch {torch.__version__}"


def stored(name: str) -> tuple[Figures, float]:
    """Return the figures of earlier sessions and how many seconds they took."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return Figures(), 0.0
    document = json.loads(path.read_text())
    return Figures(**{field_.name: document[field_.name] for field_ in fields(Figures)}), document["seconds"]


def store(document: dict[str, Any]) -> Path:
    """Write the figures of a campaign into results/campaigns."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{document['name']}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n")
    temporary.replace(path)
    return path


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a child process that imports this source tree and the toy experiment."""
    paths = [str(ROOT / "src"), str(TOY), *(p for p in sys.path if p)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}


def numbers(run: Any) -> list[dict[str, Any]]:
    """Return the curves of a run without its times."""
    return [{k: v for k, v in line.items() if k not in CHANGING} for line in run.curves]


def is_one_line(error: BaseException) -> bool:
    """Whether an error reads as one line."""
    return bool(str(error)) and "\n" not in str(error)
