"""The examples in docstrings run, and every public name has one: the API reference shows them."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import gradcent

SRC = Path(gradcent.__file__).resolve().parents[1]
# what an example may use without importing it
NAMES = {"torch": torch, "nn": nn, "gradcent": gradcent}
NEEDS = {"gradcent.integrations.timm": "timm", "gradcent.integrations.transformers": "transformers"}


def modules_with_examples() -> list[str]:
    packages = [SRC / name for name in ("gradcent", "gradcent_lab") if (SRC / name).exists()]
    paths = sorted(path for package in packages for path in package.rglob("*.py"))
    return [
        ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for path in paths
        if ">>>" in path.read_text()
    ]


def load(name: str) -> ModuleType:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if name.startswith("gradcent_lab"):
        pytest.importorskip("scipy", reason="needs the lab: pip install 'gradcent[lab]'")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = load(name)
    result = doctest.testmod(module, extraglobs=NAMES, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0, f"python -m doctest shows the {result.failed} failures of {name}"


def public_objects() -> list[tuple[str, object]]:
    """The names of the library, its optimizers and the authors' names; not the module `optim` itself."""
    found = [(name, getattr(gradcent, name)) for name in gradcent.__all__ if name != "optim"]
    authors = importlib.import_module("gradcent.authors")
    for module in (gradcent.optim, authors):
        found += [(f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__]
    return found


@pytest.mark.parametrize(
    ("name", "public"), public_objects(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_public_name_has_an_example(name: str, public: object) -> None:
    assert ">>> " in (public.__doc__ or ""), f"{name} has no example in its docstring"


def test_the_api_reference_lists_every_public_name() -> None:
    folder = Path(__file__).resolve().parents[1] / "docs" / "api"
    if not folder.exists():
        pytest.skip("the pages are not beside the tests: the installed wheel is tested")
    text = (folder / "library.md").read_text()
    missing = [name for name in gradcent.__all__ if name != "optim" and f":: {name}\n" not in text]
    assert not missing
