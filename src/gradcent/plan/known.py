"""What is known about each tensor during a traced forward pass: its origin, and the parameters that it holds."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .provenance import identity, source_of
from .usage import Held, Origin

Value = TypeVar("Value")


class KnownTensors:
    """The origin of every tensor of the pass and the parameters that it holds, by storage."""

    def __init__(self, parameters: Sequence[Tensor], inputs: Iterable[Tensor]) -> None:
        self._held: StorageMap[Held] = StorageMap()
        self._origins: StorageMap[Origin] = StorageMap()
        for index, parameter in enumerate(parameters):
            if not has_storage(parameter):
                continue
            held = self._held.get(parameter)
            source = source_of(index, parameter, identity(parameter))
            # Several parameters may be parts of one storage: the flat weights of an RNN.
            self._held.set(parameter, Held((*(held.sources if held else ()), source)))
        for tensor in inputs:
            if has_storage(tensor):
                self._origins.set(tensor, Origin.INPUT)

    def origin(self, tensor: Tensor) -> Origin:
        """Return what a tensor depends on."""
        return self._origins.get(tensor) or Origin.CONSTANT

    def held(self, tensor: Tensor) -> Held | None:
        """Return the parameters that a tensor holds, None if there are none."""
        held = self._held.get(tensor)
        if held is None:
            return None
        sources = tuple(source for source in held.sources if source.overlaps(tensor))
        return replace(held, sources=sources) if sources else None

    def weights(self, tensor: Tensor) -> Held | None:
        """Return the parameters that a tensor holds if it is not data."""
        if self.origin(tensor) > Origin.CONSTANT:
            return None
        held = self.held(tensor)
        return None if held is None or held.selected or held.mixed else held

    def mark_passed(self, tensors: Iterable[Tensor]) -> None:
        """Record that tensors are arguments of a module's forward, as data is."""
        for tensor in tensors:
            held = self._held.get(tensor) if has_storage(tensor) else None
            if held is not None and not held.passed:
                self._held.set(tensor, replace(held, passed=True))

    def set_origin(self, tensor: Tensor, origin: Origin) -> None:
        """Record what a tensor depends on; a larger origin stays."""
        if origin > self.origin(tensor):
            self._origins.set(tensor, origin)

    def set_held(self, tensor: Tensor, held: Held) -> None:
        """Record the parameters that a tensor holds."""
        self._held.set(tensor, held)


class StorageMap(Generic[Value]):
    """A dict keyed by storage that keeps no storage alive."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[torch.UntypedStorage], Value]] = {}

    def get(self, tensor: Tensor) -> Value | None:
        """Return the value for the storage of a tensor, None if there is none."""
        item = self._items.get(id(tensor.untyped_storage()))
        return None if item is None else item[1]

    def set(self, tensor: Tensor, value: Value) -> None:
        """Set the value for the storage of a tensor."""
        storage = tensor.untyped_storage()
        key, items = id(storage), self._items
        # The Python object of a storage lives as long as the storage, so its id is not reused before the callback.
        items[key] = (weakref.ref(storage, lambda _: items.pop(key, None)), value)


def has_storage(value: object) -> bool:
    """Whether a value is a tensor whose elements can be told by their place in a storage."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    # Wrappers (DTensor, quantized tensors) have no storage of their own.
    return not hasattr(value, "__tensor_flatten__") and value.numel() > 0


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors with a storage among an operator's arguments or results."""
    if isinstance(value, Tensor):
        if has_storage(value):
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
