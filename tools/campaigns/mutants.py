"""Mutants of a Python source file: small changes of meaning, generated from its syntax tree."""

from __future__ import annotations

import ast
import copy
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
    """One changed source text: `line` is where, `change` what."""

    line: int
    change: str
    source: str


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of a source text."""
    tree = ast.parse(text)
    for number, node in enumerate(_nodes(tree)):
        for variant in range(_variants(node)):
            changed = copy.deepcopy(tree)
            target = list(_nodes(changed))[number]
            before = ast.unparse(target)
            replacement = _mutate(target, variant)
            if replacement is not target:
                _replace(changed, target, replacement)
            ast.fix_missing_locations(changed)
            change = f"{_short(before)} → {_short(ast.unparse(replacement))}"
            yield Mutant(node.lineno, change, ast.unparse(changed))


def _nodes(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that can be mutated: no annotations, no type-checking blocks, no messages, no docstrings."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
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
        if id(node) not in skipped and isinstance(node, ast.expr | ast.stmt) and _variants(node):
            yield node


def _variants(node: ast.AST) -> int:
    if isinstance(node, ast.Compare):
        return int(type(node.ops[0]) in COMPARE)
    if isinstance(node, ast.BinOp):
        return int(type(node.op) in BINARY)
    if isinstance(node, ast.Constant):
        return int(isinstance(node.value, bool | int | float))
    if isinstance(node, ast.UnaryOp):
        return int(isinstance(node.op, ast.Not | ast.USub))
    if isinstance(node, ast.Expr):
        return int(isinstance(node.value, ast.Call))
    return int(isinstance(node, ast.BoolOp | ast.If | ast.IfExp))


def _mutate(node: ast.expr | ast.stmt, variant: int) -> ast.AST:
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
