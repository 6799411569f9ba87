"""Names that become folders stay below the store's root; text for the terminal moves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toy

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF
from gradcent_lab.names import distinct_file_names, escape_markup, file_name, printable
from gradcent_lab.run.scheduler import run_pairs

BAD = [
    "..",
    ".",
    "",
    " ",
    "../evil",
    "/etc/evil",
    "a/b",
    "a\\b",
    "C:evil",
    "nul\0",
    "line\nbreak",
    "\x1b[31mred",
    "half \ud800",
    "x" * 256,
    "é" * 130,
    "trailing.",
    " padded ",
]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_name_that_leaves_the_root_is_refused_before_anything_is_written(tmp_path, name):
    root = tmp_path / "deep" / "root"
    with pytest.raises(UserError, match="cannot name a folder") as error:
        run_pairs(replace(toy.experiment(), name=name), [OFF], [0], root)
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["toy", "Résumé 2", "a+b (c)", "..a", "日本語", "[red]x"])
def test_ordinary_names_are_kept(tmp_path, name):
    experiment = replace(toy.experiment(), name=name, epochs=1)
    (record,) = run_pairs(experiment, [OFF], [0], tmp_path)
    assert record.path.parent == tmp_path / name


def test_file_names_have_no_separators():
    assert file_name("../../evil") == "-..-evil"
    assert file_name("R18, b/2") == "R18--b-2"
    assert len(file_name("é" * 500).encode()) <= 200


def test_texts_that_would_share_a_file_get_their_own():
    texts = ["a/b", "a:b", "A b", "x" * 300, "x" * 400]
    names = distinct_file_names(texts)
    assert list(names) == texts
    assert len({name.casefold() for name in names.values()}) == len(texts)  # some file systems ignore case
    assert all(len(name) < 210 for name in names.values())


def test_control_characters_are_shown_as_replacement():
    assert printable("a\x1b[2Jb\x07") == "a�[2Jb�"


def test_markup_is_literal():
    from rich.text import Text

    for text in ("o[/bold]x", "[red]x[/red]", "a\\[b]", "[link=file:///x]y", "\\[", "a\\\\"):
        assert Text.from_markup(f"{escape_markup(text)}.").plain == f"{text}."
