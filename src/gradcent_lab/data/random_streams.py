"""Random numbers that depend on their purpose, not on what was drawn before.

Every draw comes from a seed mixed from strings and numbers (the run's seed, the epoch, the sample), so arms,
resumed runs, data loading workers and several processes all see the same order and the same augmentation.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch


def mix(*parts: int | str) -> int:
    """Return a 63-bit seed made of `parts`."""
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Return a fresh generator seeded by `parts`."""
    return torch.Generator().manual_seed(mix(*parts))


def seed_everything(*parts: int | str) -> None:
    """Seed torch (all devices), Python and, if it is imported, NumPy."""
    seed = mix(*parts)
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@contextlib.contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Run a block on the CPU generators seeded by `parts`, then restore their states."""
    numpy = _numpy()
    states = random.getstate(), numpy and numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed = mix(*parts)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            if numpy is not None:
                numpy.random.set_state(states[1])


def cpu_states() -> tuple[Any, Any, Any]:
    """Return the states of the global CPU generators of torch, Python and, if it is loaded, NumPy."""
    numpy = _numpy()
    return torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()


def set_cpu_states(states: tuple[Any, Any, Any]) -> None:
    """Restore what `cpu_states` returned."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy = _numpy()
    if numpy is not None and states[2] is not None:
        numpy.random.set_state(states[2])


def capture() -> dict[str, Any]:
    """Return the state of every generator, as tensors and plain values."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(internal), gauss],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = _numpy()
    if numpy is not None:
        _, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [keys.tolist(), int(position), int(has_gauss), float(cached)]
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore every generator to a captured state."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    numpy = _numpy()
    if "numpy" in state and numpy is not None:
        keys, position, has_gauss, cached = state["numpy"]
        array = numpy.array(keys, dtype=numpy.uint32)
        numpy.random.set_state(("MT19937", array, position, has_gauss, cached))


def _numpy() -> Any:
    return sys.modules.get("numpy")
