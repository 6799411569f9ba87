"""Campaign 3: damage the files of a run and load it; nothing damaged may load as if it were whole.

Two finished runs (arms off and on) and their last checkpoints are made once. Every trial damages one file in a
copy and loads it. A trial counts as silent if damaged bytes load without an error.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.run import checkpoint
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.progress import SilentProgress
from gradcent_lab.store import records

from .common import TOY, Campaign, Session, is_one_line

FILES = (
    "config.json",
    "environment.json",
    "iterations.jsonl",
    "metrics.jsonl",
    "result.json",
    "checkpoint.pt",
)


def flip_bit(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """Flip one bit."""
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def truncate(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """Cut the end off."""
    return content[: rng.randrange(len(content))]


def fill_zeros(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """Overwrite a range with zeros, as a file system may after a crash."""
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.choice((1, 16, 512, 4096)))
    return content[:start] + bytes(end - start) + content[end:]


def swap(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """Take the other arm's file."""
    return other


def drop_line(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """Remove one line."""
    lines = content.split(b"\n")
    del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def change_digit(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """Replace one digit by another, which leaves valid JSON."""
    places = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return content
    at = rng.choice(places)
    return content[:at] + str((content[at] - 48 + rng.randrange(1, 10)) % 10).encode() + content[at + 1 :]


def append(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """Add bytes at the end, for instance a line once more."""
    return content + rng.choice(
        (b"\n", b" ", b"\xff\xfe", content[-60:], b'{"epoch": 99, "eval_metric": 99.0}\n')
    )


DAMAGE: tuple[Callable[[bytes, random.Random, bytes], bytes], ...] = (
    flip_bit,
    flip_bit,
    flip_bit,
    truncate,
    fill_zeros,
    swap,
    drop_line,
    change_digit,
    append,
)


def run(session: Session) -> None:
    """Damage files, one at a time."""
    figures, rng = session.figures, session.rng()
    off, on = make_runs(session.folder)
    contents = [{name: (path / name).read_bytes() for name in FILES} for path in (off, on)]
    unharmed = 0
    while session.goes_on():
        which = rng.randrange(2)
        path, intact, other = (off, on)[which], contents[which], contents[1 - which]
        name, damage = rng.choice(FILES), rng.choice(DAMAGE)
        damaged = damage(intact[name], rng, other[name])
        if damaged == intact[name]:  # for instance both arms have the same environment.json
            unharmed += 1
            continue
        figures.tried += 1
        figures.count(f"{name}, {damage.__name__}")
        target = path / name
        target.write_bytes(damaged)
        try:
            if name == "checkpoint.pt":
                checkpoint.read_document(target, path.name)
            else:
                records.load_run(path)
            figures.fail("silent", f"{name}, {damage.__name__}, trial {figures.tried}")
        except UserError as error:
            if not is_one_line(error):
                figures.fail("crashed", f"message of several lines for {name}: {error}")
        except Exception as error:
            figures.fail("crashed", f"{name}, {damage.__name__}: {type(error).__name__}: {error}")
        target.write_bytes(intact[name])
    for path in (off, on):
        records.load_run(path)
        checkpoint.read_document(path / "checkpoint.pt", path.name)
    figures.count("damage without effect, not counted", unharmed)


class _KeepCheckpoint(SilentProgress):
    """Copies the checkpoint that the store deletes at the end of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def epoch_done(self, config, metrics) -> None:  # type: ignore[no-untyped-def]
        """Copy the newest checkpoint out of the run's folder."""
        path = self.folder / "runs" / config.study / config.run_id / "checkpoint.pt"
        shutil.copy(path, self.folder / f"{config.run_id}.pt")


def make_runs(folder: Path) -> tuple[Path, Path]:
    """Run both arms of the toy experiment; return their folders, each with its result and its last checkpoint."""
    from dataclasses import replace

    from gradcent_lab.run.scheduler import run_pairs

    sys.path.insert(0, str(TOY))
    import toy

    experiment = replace(toy.experiment(), observe=observe)
    options = Options(checkpoint_seconds=0.0)
    progress = _KeepCheckpoint(folder)
    runs = run_pairs(experiment, [OFF, ON], [0], folder / "runs", options=options, progress=progress)
    for record in runs:
        shutil.copy(folder / f"{record.path.name}.pt", record.path / "checkpoint.pt")
        assert json.loads((record.path / "result.json").read_text())["files"].keys() >= {"iterations.jsonl"}
    return runs[0].path, runs[1].path


def observe(model) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """Return the norm of the first gradient."""
    return {"norm": float(model[0].weight.grad.norm())}


CAMPAIGN = Campaign(
    "corruption",
    "damaged configurations, curves, results and checkpoints",
    run,
    target=10_000,
    short=300,
)
