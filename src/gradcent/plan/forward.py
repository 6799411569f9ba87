"""Run one forward pass of a model on an example, and leave everything as it was.

Parameters, buffers, attributes of modules (the train/eval mode among them) and random number generators are restored,
also when the forward pass fails.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

ExampleForward = Callable[[Any, Any], Any]


def run_example(model: Any, example: Any, forward: ExampleForward | None) -> Any:
    """Call the model as its forward takes the example: a tensor, a tuple of arguments or a dict of keywords."""
    if forward is not None:
        return forward(model, example)
    if isinstance(example, tuple) and not hasattr(example, "_fields"):
        return model(*example)
    if isinstance(example, Mapping):
        return model(**example)
    return model(example)


@contextmanager
def undisturbed(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restore modules, random number generators and torch's settings afterwards."""
    saved = [_ModuleState(module) for module in modules]
    tensors = [tensor for module in modules for tensor in module.parameters(recurse=False)]
    devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    with ExitStack() as stack:
        for kind in {device.type for device in devices} or {"cpu"}:
            indices = sorted({d.index or 0 for d in devices if d.type == kind})
            stack.enter_context(torch.random.fork_rng(indices, device_type=kind if indices else "cuda"))
        stack.enter_context(torch.no_grad())
        set_stance = getattr(torch.compiler, "set_stance", None)
        if set_stance is not None:
            stack.enter_context(set_stance("force_eager"))
        fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # one fused operator that hides its contractions
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)
            for state in saved:
                state.restore()
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


class _ModuleState:
    """The attributes and buffers of one module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.attributes = dict(module.__dict__)
        self.tables = {
            name: dict(module.__dict__[name])
            for name in ("_parameters", "_buffers", "_modules")
            if isinstance(module.__dict__.get(name), dict)
        }
        buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
        self.buffers = [(buffer, buffer.detach().clone()) for buffer in buffers if not buffer.is_meta]

    def restore(self) -> None:
        current = self.module.__dict__
        for name in [name for name in current if name not in self.attributes]:
            del current[name]
        for name, value in self.attributes.items():
            if current.get(name, self) is not value:
                current[name] = value
        for name, table in self.tables.items():
            held = current[name]
            if list(held) != list(table) or any(held[key] is not table[key] for key in table):
                held.clear()
                held.update(table)
        for buffer, values in self.buffers:
            # Writing would invalidate a graph that saved the buffer, so only what changed is written.
            if not torch.equal(buffer, values):
                buffer.copy_(values)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in an example: containers, data classes and objects such as graph batches."""
    seen: set[int] = set()

    def walk(value: Any, depth: int) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            yield value
            return
        if depth == 0 or isinstance(value, (str, bytes, int, float, nn.Module)) or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            children = list(value.values())
        elif isinstance(value, (list, tuple, set)):
            children = list(value)
        elif is_dataclass(value) and not isinstance(value, type):
            children = [getattr(value, field.name, None) for field in fields(value)]
        else:
            children = list(getattr(value, "__dict__", {}).values())
        for child in children:
            yield from walk(child, depth - 1)

    yield from walk(value, 8)


def on_device_of(example: Any, parameters: Sequence[Tensor]) -> Any:
    """Move an example to the device of a model that is on one device: meta and fake tensors included."""
    modes = {
        id(mode): mode for mode in (getattr(p, "fake_mode", None) for p in parameters) if mode is not None
    }
    devices = {parameter.device for parameter in parameters}
    if len(modes) == 1:
        mode = next(iter(modes.values()))
        return _map(
            example, lambda tensor: tensor if hasattr(tensor, "fake_mode") else mode.from_tensor(tensor)
        )
    if len(devices) != 1:
        return example
    device = next(iter(devices))
    return _map(example, lambda tensor: tensor.to(device))


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(item, function) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_map(item, function) for item in value)
    if isinstance(value, Mapping):
        return {key: _map(item, function) for key, item in value.items()}
    return value
