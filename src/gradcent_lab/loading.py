"""Find what a user names on the command line, or say in one line why it cannot be found."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from .errors import UserError


def need(module: str, package: str) -> Any:
    """Import an optional package, or name the pip line that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"this needs {package}, which cannot be imported ({error}): pip install {package}"
        ) from None


def load_object(spec: str) -> Any:
    """Return what `module:name` stands for; modules in the working folder are found too."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise UserError(f"{spec!r} is not of the form module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UserError(
                f"no module {module_name!r} here ({os.getcwd()}) or installed; write it as in `import`, without .py"
            ) from None
        raise UserError(f"module {module_name!r} needs {error.name!r}, which is not installed") from None
    try:
        found = getattr(module, name)
    except AttributeError:
        public = [
            each for each in vars(module) if callable(getattr(module, each)) and not each.startswith("_")
        ]
        raise UserError(
            f"module {module_name!r} has no {name!r}; it has {', '.join(public[:8]) or 'no functions'}"
        ) from None
    if not callable(found):
        raise UserError(f"{spec} is {type(found).__name__}, not a function")
    return found
