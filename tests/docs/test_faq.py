"""The messages that docs/faq.md explains are messages of the source."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOLE = "\0"  # stands for a value in an f-string


@cache
def messages() -> list[str]:
    """Every string of the source, f-strings and concatenations included."""
    texts = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else HOLE for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def pattern(quoted: str) -> re.Pattern[str]:
    """A quoted message as a pattern: `…` stands for any text."""
    return re.compile(".*".join(re.escape(part) for part in quoted.split("…")), re.DOTALL)


def quoted_messages() -> list[str]:
    rows = re.findall(r"^`([^`]+)`\n: ", (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)
    assert len(rows) > 20
    return rows


def test_every_explained_message_exists() -> None:
    texts = messages()
    missing = [
        quoted for quoted in quoted_messages() if not any(pattern(quoted).search(text) for text in texts)
    ]
    assert not missing


def test_a_message_that_does_not_exist_is_noticed() -> None:
    assert not any(pattern("the moon is … cheese").search(text) for text in messages() if "cheese" in text)
    assert any(pattern("gradcent is attached to this … already").search(text) for text in messages())
