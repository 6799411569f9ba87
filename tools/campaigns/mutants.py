"""Mutants of a Python source file: small changes of meaning, generated from its syntax tree."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change of a source text: `line` is where, `statement` the line its statement starts, `change` what.

    `statement` is 0 where the statement is executed by the import of the module.
    """

    line: int
    statement: int
    change: str
    source: str


def count(text: str) -> int:
    """Return how many mutants a source text has."""
    return sum(1 for _ in _nodes(ast.parse(text)))


def mutant(text: str, number: int) -> Mutant:
    """Return one mutant of a source text."""
    tree = ast.parse(text)
    statements = _statements(tree)
    target = next(itertools.islice(_nodes(tree), number, None))
    line, before = target.lineno, ast.unparse(target)
    statement = statements.get(id(target), 0)
    replacement = _mutate(target)
    if replacement is not target:
        _replace(tree, target, replacement)
    ast.fix_missing_locations(tree)
    change = f"{_short(before)} → {_short(ast.unparse(replacement))}"
    return Mutant(line, statement, change, ast.unparse(tree))


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of a source text."""
    for number in range(count(text)):
        yield mutant(text, number)


def instrumented(text: str, call: str) -> str:
    """Return the source with `call(LINE)` before every statement of every function."""
    tree = ast.parse(text)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for block in _blocks(function):
            for at in range(len(block) - 1, -1, -1):
                if not _is_docstring(block[at]):
                    marker = ast.parse(f"{call}({block[at].lineno})").body[0]
                    block.insert(at, ast.copy_location(marker, block[at]))
    ast.fix_missing_locations(tree)
    return ast.unparse(tree)


def _blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements of a function, without those of functions and classes inside it."""
    pending: list[ast.AST] = [function]
    while pending:
        node = pending.pop()
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block
                pending += [s for s in block if not isinstance(s, ast.FunctionDef | ast.ClassDef)]
        pending += getattr(node, "handlers", [])


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _statements(tree: ast.Module) -> dict[int, int]:
    """Map every node inside a function to the line of its innermost statement."""
    lines: dict[int, int] = {}

    def visit(node: ast.AST, line: int, inside: bool) -> None:
        if inside:
            lines[id(node)] = line
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                within = (inside or is_function) if name == "body" or not is_function else inside
                is_statement = isinstance(child, ast.stmt) and within
                visit(child, child.lineno if is_statement else line, within)  # type: ignore[attr-defined]

    visit(tree, 0, False)
    return lines


def _nodes(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that can be mutated: no annotations, no type-checking blocks, no messages, no docstrings.

    `strict=True` of zip is left out too: it asserts what the code around it guarantees.
    """
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            parts = [node.value]
        elif isinstance(node, ast.FunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            parts = [node.returns, *node.decorator_list, *(a.annotation for a in every)]
        elif (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING") or isinstance(
            node, ast.JoinedStr | ast.Raise
        ):
            parts = [node]
        for part in parts:
            skipped |= {id(child) for child in ast.walk(part)} if part is not None else set()
    for node in ast.walk(tree):
        if id(node) not in skipped and isinstance(node, ast.expr | ast.stmt) and _is_mutable(node):
            yield node


def _is_mutable(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in COMPARE
    if isinstance(node, ast.BinOp):
        return type(node.op) in BINARY
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not | ast.USub)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.BoolOp | ast.If | ast.IfExp)


def _mutate(node: ast.expr | ast.stmt) -> ast.AST:
    """Change a node in place, or return another for its place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARE[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = BINARY[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif isinstance(node, ast.Constant):
        value = node.value
        node.value = not value if isinstance(value, bool) else value + 1  # type: ignore[operator]
    elif isinstance(node, ast.UnaryOp):
        return node.operand
    elif isinstance(node, ast.Expr):
        return ast.Pass()
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    return node


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(item is old for item in value):
                value[[item is old for item in value].index(True)] = new


def _short(text: str) -> str:
    line = text.splitlines()[0]
    return line if len(line) <= 70 else f"{line[:67]}..."
