"""Files that are there whole or not at all: written beside their place and renamed into it."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from gradcent_lab.errors import UserError


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a temporary file, flush it to the disk and rename it to `path`."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if disk_full(error):
            raise no_space(path) from error
        if isinstance(error, PermissionError):
            raise UserError(f"may not write {path}: choose another folder with --out") from error
        raise


def drop_leftovers(path: Path) -> None:
    """Remove the temporary files that a killed process may have left beside `path`."""
    for each in path.parent.glob(f".{path.name}.*.tmp"):
        each.unlink(missing_ok=True)


def no_space(path: Path) -> UserError:
    """Return the error for a full disk."""
    return UserError(
        f"no space left to write {path}: free some and run again, finished runs and epochs are kept"
    )


def write_json(path: Path, document: Any) -> None:
    """Write `document` as indented JSON."""
    text = json.dumps(document, indent=1, sort_keys=True, default=str) + "\n"
    write_atomically(path, lambda stream: _write(stream, text))


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(path, lambda stream: _write(stream, text))


def read_json(path: Path) -> Any:
    """Read a JSON file; a damaged one is an error that names it."""
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}): delete its folder and run again") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object per line; a file that is not there is empty."""
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line]
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}): delete its folder and run again") from error


def make_folder(path: Path) -> Path:
    """Create `path` and its parents, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if disk_full(error):
            raise no_space(path) from error
        raise UserError(
            f"cannot create the folder {path} ({error.strerror}): choose another place with --out"
        ) from error
    return path


def _write(stream: BinaryIO, text: str) -> None:
    stream.write(text.encode())


def disk_full(error: BaseException) -> bool:
    """Whether a write failed for want of space."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError) and error.errno in full:
        return True
    # torch.save reports a failed write as a RuntimeError of its own
    return isinstance(error, RuntimeError) and (
        "No space left" in str(error) or "unexpected pos" in str(error) or "file write failed" in str(error)
    )
