from collections.abc import Callable
from typing import Any

from torch import Tensor

class Unsupported(TypeError): ...

def centralize(
    out: Any, tensors: Any, weights: Any, layouts: Any, decay: float, threads: int
) -> list[int]: ...
def sgd(*arguments: Any) -> list[int]: ...
def adam(*arguments: Any) -> list[int]: ...
def adagrad(*arguments: Any) -> list[int]: ...
def collect(
    parameters: list[Tensor],
    states: Any,
    keys: tuple[str, ...],
    required: bool,
    thorough: bool,
    outputs: tuple[list[Any], ...],
) -> bool: ...
def setup(
    types: tuple[type, ...],
    exchange: Any,
    describe: Callable[..., Any],
    zeros_like: Any,
    *entry_points: int,
) -> None: ...
def instruction_set(name: str | None = None) -> str: ...
