"""Campaign 1: kill `gradcent run` and `gradcent compare` with SIGKILL at random moments, and let them continue.

A study is a few seeds of a tiny experiment with a checkpoint after every step. The command is killed at a random
moment of its computing time (checks, training, writing, report) and started again until it ends by itself. Then
every run must be there once, with the numbers of a study that nobody disturbed, and no other file may be left.

Most processes are forked from one that has imported everything (campaigns/forks.py), which moves the kills from
the import of torch into the work itself; every tenth is a new interpreter.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradcent_lab.store import records

from . import forks
from .common import Campaign, Figures, Session, numbers

IDLE = 120.0  # seconds without computing after which a process counts as hanging
NEW_INTERPRETER = 10  # every tenth process
COMPARE = ["compare", "campaign_study:experiment", "--seeds", "2", "--checkpoint-seconds", "0"]
RUN = ["run", "campaign", "--scale", "smoke", "--seeds", "1", "--checkpoint-seconds", "0"]


@dataclass
class Command:
    """A command and its undisturbed study: the numbers of the runs, all files, and how long it computes."""

    words: list[str]
    life: float
    files: set[str]
    runs: dict[str, object]
    is_new: bool = False  # in a new interpreter

    def start(self, root: Path) -> int:
        """Start the command; return the process id."""
        words = [*self.words, "--out", str(root)]
        return forks.start_command(words) if self.is_new else forks.fork_command(words)


@dataclass
class Study:
    """A study that is killed; `finished` has the inode and content of every result seen so far."""

    root: Path
    finished: dict[Path, tuple[int, bytes]] = field(default_factory=dict)


def run(session: Session) -> None:
    """Kill until the session ends."""
    forks.import_everything(session.folder / "imports")
    figures, rng, folder = session.figures, session.rng(), session.folder
    commands = [_undisturbed(words, folder / words[0]) for words in (RUN, COMPARE)]
    import_time = forks.import_time()
    number = 0
    while session.goes_on():
        number += 1
        study = Study(folder / f"broken-{number}")
        command = commands[number % 8 == 0]  # one study in eight is a comparison, which takes longer
        new = replace(command, life=import_time + command.life, is_new=True)
        if _kill_until_done(session, study, command, new, rng):
            _check_study(study.root, command, figures)
            figures.count("studies completed")
            figures.count("runs checked", len(command.runs))
        shutil.rmtree(study.root, ignore_errors=True)


def _undisturbed(words: list[str], root: Path) -> Command:
    command = Command(words, 0.0, set(), {})
    command.life = forks.life(command.start(root), 3600.0)
    command.files, command.runs = _files(root), _runs(root)
    return command


def _runs(root: Path) -> dict[str, object]:
    place = root / "runs" if (root / "runs").is_dir() else root
    return {r.path.name: (numbers(r), r.iterations()) for r in records.load(place)}


def _files(root: Path) -> set[str]:
    """Every file of a finished study, by its path below `root`."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def _kill_until_done(
    session: Session, study: Study, command: Command, new: Command, rng: random.Random
) -> bool:
    """Start and kill one study until it ends by itself; the last start of a session is not killed."""
    figures = session.figures
    while True:
        last = not session.goes_on()
        chosen = new if figures.tried % NEW_INTERPRETER == 0 and not last else command
        process = chosen.start(study.root)
        moment = 20 * chosen.life if last else rng.uniform(0.0, chosen.life)
        status = forks.wait_unless_idle(process, IDLE, moment)
        if status is None:
            hangs = last or forks.computed(process) < moment
            forks.kill(process)
            if hangs:
                figures.fail("lost", f"a study hangs after kill {figures.tried}")
                return False
            figures.tried += 1
            kind = "new interpreter" if chosen.is_new else "forked"
            figures.count(f"kills of {command.words[0]}, {kind}")
            _check_finished(study, figures)
            continue
        _check_finished(study, figures)
        if status != 0:
            figures.fail("crashed", f"exit status {status} after kill {figures.tried}")
        return status == 0


def _check_finished(study: Study, figures: Figures) -> None:
    """A run that was finished stays as it is: the same file, not written again."""
    for path, (inode, content) in study.finished.items():
        if not path.exists():
            figures.fail("lost", f"the finished run {path.parent.name} is gone after kill {figures.tried}")
        elif path.stat().st_ino != inode or path.read_bytes() != content:
            figures.fail(
                "wrong", f"the finished run {path.parent.name} ran twice before kill {figures.tried}"
            )
    for path in study.root.rglob("result.json"):
        study.finished.setdefault(path, (path.stat().st_ino, path.read_bytes()))


def _check_study(root: Path, command: Command, figures: Figures) -> None:
    runs, files = _runs(root), _files(root)
    if runs.keys() != command.runs.keys():
        figures.fail("lost", f"{len(runs)} of {len(command.runs)} runs after kill {figures.tried}")
    for name in runs.keys() & command.runs.keys():
        if runs[name] != command.runs[name]:
            figures.fail("wrong", f"other numbers in {name} after kill {figures.tried}")
    if stray := files - command.files:
        figures.fail("wrong", f"left behind: {sorted(stray)}")
    if missing := command.files - files:
        figures.fail("lost", f"missing: {sorted(missing)}")


CAMPAIGN = Campaign(
    "kills",
    "`gradcent run` and `gradcent compare` killed by SIGKILL at random moments and continued",
    run,
    target=1_000,
    short=6,
)
