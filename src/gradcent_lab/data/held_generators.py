"""Random generators that data objects hold: found by looking through their attributes, and reseeded together.

A loader, sampler or dataset with a generator of its own would go on where the last run left it, so the second
arm of a pair would see other batches than the first.
"""

from __future__ import annotations

import random
import sys
import types
from typing import Any

import torch

from gradcent_lab.data.random_streams import mix

_DEPTH = 5  # loader → batch sampler → sampler → generator, and one more for wrappers
_WIDTH = 64  # elements of a container that are looked at: lists of samples are not searched
_LEAVES = (
    torch.Tensor,
    str,
    bytes,
    int,
    float,
    complex,
    type,
    types.ModuleType,
    types.FunctionType,
    type(None),
)


def held_generators(data: Any) -> list[Any]:
    """Return the torch, Python and NumPy generators reachable from `data`, in a fixed order, each once."""
    generators: list[Any] = []
    seen: set[int] = set()

    def visit(value: Any, depth: int) -> None:
        if id(value) in seen or isinstance(value, _LEAVES):
            return
        seen.add(id(value))
        if _is_generator(value):
            if value is not torch.default_generator:
                generators.append(value)
        elif depth > 0:
            for child in _children(value):
                visit(child, depth - 1)

    visit(data, _DEPTH)
    return generators


def reseed(generators: list[Any], *parts: int | str) -> None:
    """Seed every generator by `parts` and its place in the list."""
    for place, generator in enumerate(generators):
        seed = mix(*parts, "held", place)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, random.Random):
            generator.seed(seed)
        elif hasattr(generator, "bit_generator"):  # numpy.random.Generator
            bits = generator.bit_generator
            bits.state = type(bits)(seed).state
        else:  # numpy.random.RandomState
            generator.seed(seed % 2**32)


def _is_generator(value: Any) -> bool:
    if isinstance(value, torch.Generator | random.Random):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values()) if len(value) <= _WIDTH else []
    if isinstance(value, list | tuple | set | frozenset):
        return list(value) if len(value) <= _WIDTH else []
    children = list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        names = getattr(kind, "__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                children.append(getattr(value, name))
    return children
