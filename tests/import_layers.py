"""Read the imports of a package with `ast`, and check that they point one way through its layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path


def imports_of(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module name) of every import, those inside functions too.

    ``root`` is the folder above the package. Imports for type checkers only are left out: they do not run.
    `from package import name` yields `package.name` where that is a module, else `package`.
    """
    package = path.relative_to(root).parts[:-1]
    for node in _running(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                file = root.joinpath(*module.split("."), alias.name)
                is_module = file.is_dir() or file.with_suffix(".py").exists()
                yield node.lineno, f"{module}.{alias.name}" if is_module else module


def _running(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from _running(child)
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _running(child)


def wrong_imports(root: Path, package: str, layers: Mapping[str, int]) -> list[str]:
    """Return the imports inside ``package`` that do not point to a lower layer, as "file:line imports module".

    ``layers`` maps each part of the package (a module or folder directly inside it) to its layer. A part may import
    itself and parts of lower layers. A part that has no layer is reported too.
    """
    wrong = []
    for path in sorted((root / package).rglob("*.py")):
        part = path.relative_to(root / package).with_suffix("").parts[0]
        where = path.relative_to(root)
        if part == "__init__":  # the package's public names
            continue
        if part not in layers:
            wrong.append(f"{where} has no layer")
            continue
        for line, module in imports_of(path, root):
            names = module.split(".")
            if names[0] != package or names[1:2] == [part]:
                continue
            if len(names) == 1 or layers.get(names[1], layers[part]) >= layers[part]:
                wrong.append(f"{where}:{line} imports {module}")
    return wrong
