"""Names that become folders, and text that reaches a terminal: what is allowed, and how the rest is replaced."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from gradcent_lab.errors import UserError

LONGEST = 200  # bytes; file systems allow 255, and temporary files add to a name
LONGEST_LABEL = 500  # characters of a name that is shown in tables and figures
_RESERVED = set('/\\:*?"<>|')


def check_folder_name(name: object, what: str) -> str:
    """Return `name` if it can name one folder below its parent; raise `UserError` with the reason if not."""
    if not isinstance(name, str):
        raise UserError(f"{what} must be a string that can name a folder, not {type(name).__name__}")
    problem = _problem(name)
    if problem:
        raise UserError(f"{what} {_shown(name)} cannot name a folder: {problem}; choose another name")
    return name


def _problem(name: str) -> str | None:
    if not name.strip():
        return "it is empty"
    if name in (".", ".."):
        return "it means another folder"
    if reserved := sorted(set(name) & _RESERVED):
        return f"it contains {' '.join(reserved)}"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        return "it contains control characters or halves of surrogate pairs"
    if name != name.strip() or name.endswith("."):
        return "it begins or ends with a space, or ends with a dot"
    if len(name.encode()) > LONGEST:
        return f"it is longer than {LONGEST} bytes"
    return None


def _shown(name: str) -> str:
    text = ascii(name)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_label(text: object, what: str) -> None:
    """Raise `UserError` unless `text` can be shown in tables, figures and pages as it is."""
    if not isinstance(text, str):
        raise UserError(f"{what} must be a string, not {type(text).__name__}")
    if len(text) > LONGEST_LABEL:
        raise UserError(f"{what} {_shown(text)} has {len(text)} characters: {LONGEST_LABEL} are the most")
    if printable(text) != text or "\n" in text:
        raise UserError(f"{what} {_shown(text)} contains control characters: remove them")


def file_name(text: str) -> str:
    """Return `text` with everything but letters, digits, `+`, `-`, `_` and `.` replaced by `-`."""
    plain = "".join(c if c.isalnum() or c in "+-_." else "-" for c in text)
    return plain.encode("utf-8", "ignore")[:LONGEST].decode("utf-8", "ignore").strip(".") or "-"


def distinct_file_names(texts: Sequence[str]) -> dict[str, str]:
    """Return a file name for each text; a number keeps those apart that would share one."""
    names: dict[str, str] = {}
    for text in texts:
        plain, number = file_name(text), 2
        chosen = plain
        while chosen.casefold() in {name.casefold() for name in names.values()}:
            chosen, number = f"{plain}-{number}", number + 1
        names[text] = chosen
    return names


def printable(text: object) -> str:
    """Return `text` without control characters, which could move the cursor or change the terminal."""
    return "".join(
        "�" if unicodedata.category(character) in ("Cc", "Cs", "Cf") and character != "\n" else character
        for character in str(text)
    )


def escape_markup(text: object) -> str:
    """Return `text` for a place where rich reads markup: square brackets and control characters are literal.

    `rich.markup.escape` drops a backslash before a bracket that begins no tag, and doubles one at the end. The
    caller's next character must not be a square bracket.
    """
    literal = re.sub(r"(\\+)(\[)(?![a-zA-Z#/@][^\[]*?\])", r"\1\\\2", printable(text))
    return re.sub(r"(\\*)(\[[a-zA-Z#/@][^\[]*?\])", r"\1\1\\\2", literal)
