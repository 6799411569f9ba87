"""Import and call what a user names on the command line; every failure is a one-line error."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gradcent_lab.errors import UserError, install_line


def need(module: str, package: str) -> Any:
    """Import an optional package; the error gives the pip command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"this needs {module}, which cannot be imported ({error}): {install_line(package)}"
        ) from None


def find(spec: str) -> Any:
    """Return what `module:name` or `path/to/file.py:name` stands for; modules in the working folder are found too."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise UserError(
            f"{spec!r} does not name a function: write module:function, or path/to/file.py:function"
        )
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found = getattr(module, name, None)
    if found is None:
        own = [
            n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__
        ]
        public = [n for n in own if not n.startswith("_")]
        has = f"its functions are {', '.join(public)}" if public else "it defines no function"
        raise UserError(f"{place} has no {name}: {has}")
    return found


def call(spec: str, function: Callable[[], Any]) -> Any:
    """Call a user's function, which must need no arguments."""
    if not callable(function):
        raise UserError(f"{spec} is {described(function)}, not a function")
    try:
        required = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except ValueError:  # written in C, and without a signature
        required = []
    if required:
        raise UserError(f"{spec} must need no arguments, but has {', '.join(required)}: give them defaults")
    try:
        return function()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{spec} raised {one_line(error)}") from error


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise UserError(
                f"there is no module {missing!r} in {here} or among the installed packages"
            ) from error
        raise UserError(f"{name} needs a module that is not installed: {missing}") from error
    except Exception as error:
        raise UserError(f"importing {name} failed: {one_line(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    name = f"_experiment_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{path} needs a module that is not installed: {error.name}") from error
    except Exception as error:
        raise UserError(f"running {path} failed: {one_line(error)}") from error
    return module


def described(value: object) -> str:
    """Return the value's type with its article."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def one_line(error: BaseException) -> str:
    """Return an error as one line, with the line of the user's file where it happened."""
    text = " ".join(str(error).split()) or "(no message)"
    name = type(error).__name__
    frames = [
        (Path(f.filename), f.lineno)
        for f in traceback.extract_tb(error.__traceback__)
        if "importlib" not in f.filename
    ]
    if QUOTED in str(error):  # from a worker process: its traceback is part of the message
        frames, name, text = _from_worker(str(error), name, text)
    # the user's own line, not the one of torch, of Python's library or of this package that it ended in
    users = [frame for frame in frames if not _installed(frame[0])]
    last = users[-1] if users else frames[-1] if frames else None
    at = f" ({last[0].name}, line {last[1]})" if last else ""
    return f"{name}: {text}{at}"


QUOTED = "Traceback (most recent call last):"


def _from_worker(message: str, name: str, text: str) -> tuple[list[tuple[Path, int | None]], str, str]:
    """Return the frames, the class and the text of the error that a worker's message quotes."""
    frames: list[tuple[Path, int | None]] = [
        (Path(file), int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', message)
    ]
    lines = [line for line in message.strip().splitlines() if line.strip()]
    quoted, colon, rest = lines[-1].partition(": ")
    if colon and quoted.replace(".", "").isidentifier():
        return frames, quoted.rpartition(".")[2], rest.strip()
    return frames, name, text.partition(QUOTED)[0].strip()


def _installed(path: Path) -> bool:
    lab = Path(__file__).parents[1]
    ours = path.is_relative_to(lab) or path.is_relative_to(lab.parent / "gradcent")
    library = path.is_relative_to(Path(sysconfig.get_path("stdlib"))) or path.name.startswith("<")
    return ours or library or bool({"site-packages", "dist-packages"} & set(path.parts))
