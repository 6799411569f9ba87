"""The reference manual that Python carries for `help()`: text that needs no download.

It differs between releases of Python, so a run that trains on it has the digest of the text in its settings.
"""

from __future__ import annotations

import functools
import hashlib


@functools.cache
def python_manual() -> str:
    """Return the topics of the manual in alphabetical order."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


@functools.cache
def unique_paragraphs() -> str:
    """Return the manual with every paragraph once.

    Topics contain parts of each other: without this, one test window in six repeats training text, with it one in
    twenty.
    """
    return "\n\n".join(dict.fromkeys(python_manual().split("\n\n")))


@functools.cache
def manual_digest() -> str:
    """Return 16 hexadecimal digits that name the text."""
    return hashlib.sha256(python_manual().encode()).hexdigest()[:16]
