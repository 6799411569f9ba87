"""Files that exist completely or not at all: written beside their place, flushed, and renamed into it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gradcent_lab.errors import UserError
from gradcent_lab.store import process_identity

ABANDONED = 3600.0  # seconds after which a temporary file of another machine counts as left behind
_TEMPORARY = re.compile(r"\..+\.(?P<owner>[0-9a-f]{8}-\d+-\w+)\.[0-9a-f]+\.tmp", re.DOTALL)


class Damaged(UserError):
    """A stored file that cannot be what was written."""


def temporary_path(path: Path) -> Path:
    """Return a new name beside `path` that tells which process uses it."""
    return path.with_name(f".{path.name}.{process_identity.tag()}.{uuid.uuid4().hex[:8]}.tmp")


def write_atomically(path: Path, write: Callable[[BinaryIO], None], *, shown: Path | None = None) -> None:
    """Let `write` fill a temporary file, flush it to the disk and rename it to `path`.

    An error names `shown` instead of `path`.
    """
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) or disk_full(error):
            raise write_error(shown or path, error) from error
        raise


def check_writable(path: Path) -> None:
    """Raise the error that writing `path` would raise, without touching it."""
    if path.is_dir():
        raise write_error(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    probe = temporary_path(path)
    write_atomically(probe, lambda stream: None, shown=path)
    probe.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names, without which a rename may not survive a power failure."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # file systems without it
            raise
    finally:
        os.close(descriptor)


def write_error(path: Path, error: BaseException) -> UserError:
    """Return the one-line error for a failed write to `path`."""
    if disk_full(error):
        return UserError(
            f"no space left to write {path}: free some space and run again, finished runs and epochs are kept"
        )
    if isinstance(error, PermissionError):
        return UserError(f"may not write {path}: choose another folder with --out")
    reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    return UserError(
        f"cannot write {path} ({reason}): check the disk and run again, or choose another folder"
    )


@contextlib.contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn what the operating system reports about files in `folder` into one line; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.filename is None or not os.fspath(error.filename).startswith(os.fspath(folder)):
            raise
        raise write_error(Path(os.fsdecode(error.filename)), error) from error


def drop_leftovers(path: Path) -> None:
    """Remove the temporary files that a killed process may have left beside `path`."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


def drop_abandoned(folder: Path, *, own: bool = False) -> None:
    """Remove the temporary files and folders in `folder` whose process is dead, or foreign and silent for long.

    `own` also removes those of this process, which must not be writing into `folder` now.
    """
    for leftover in folder.glob(".*.tmp"):
        name = _TEMPORARY.fullmatch(leftover.name)
        if name is None:  # somebody else's
            continue
        owner = name["owner"]
        with contextlib.suppress(OSError):
            dead = process_identity.is_dead(owner) or (own and owner == process_identity.tag())
            foreign = not process_identity.is_local(owner)
            if dead or (foreign and time.time() - leftover.stat().st_mtime > ABANDONED):
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink()


def write_json(path: Path, document: Any) -> None:
    """Write `document` as indented JSON."""
    write_text(path, json_text(document))


def json_text(document: Any) -> str:
    """Return the text that `write_json` writes."""
    return json.dumps(document, indent=1, sort_keys=True, default=str) + "\n"


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    write_text(path, lines_text(rows))


def lines_text(rows: Iterable[dict[str, Any]]) -> str:
    """Return the text that `write_lines` writes."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_bytes(path: Path) -> bytes:
    """Read a whole file; one that is missing or unreadable is an error that names it."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing: delete its folder and run again") from error
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror or error}): check the disk and run again"
        ) from error


def read_json(path: Path) -> Any:
    """Read a JSON file; a damaged one is an error that names it."""
    return _parse(path, read_bytes(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object per line; a file that does not exist is empty."""
    if not path.exists():
        return []
    rows = [_parse(path, line) for line in read_bytes(path).split(b"\n") if line]
    if not all(isinstance(row, dict) for row in rows):
        raise Damaged(f"{path} is damaged (a line is not an object): delete its folder and run again")
    return rows


def digest_bytes(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _parse(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # not UTF-8, not JSON, numbers of 5,000 digits, deep nesting
        reason = str(error).splitlines()[0][:80]
        raise Damaged(f"{path} is damaged ({reason}): delete its folder and run again") from error


def make_folder(path: Path) -> Path:
    """Create `path` and its parents, or raise with the reason."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        if disk_full(error):
            raise write_error(path, error) from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"cannot create the folder {path} ({reason}): choose another place with --out"
        ) from error
    return path


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8; what UTF-8 cannot hold (halves of surrogate pairs) becomes a question mark."""
    write_atomically(path, lambda stream: _write(stream, text))


def _write(stream: BinaryIO, text: str) -> None:
    stream.write(text.encode("utf-8", "replace"))


def disk_full(error: BaseException) -> bool:
    """Whether a write failed because the disk is full."""
    full = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError) and error.errno in full:
        return True
    # torch.save reports a failed write as a RuntimeError of its own
    return isinstance(error, RuntimeError) and (
        "No space left" in str(error) or "unexpected pos" in str(error) or "file write failed" in str(error)
    )
