"""The class exchange: `attach` turns an existing optimizer into one with GC by replacing its `__class__`.

The optimizer stays the same object, so that schedulers, trainers and user code that hold it keep working. A class of
torch.optim is replaced by the drop-in class of gradcent.optim. For every other class a subclass is generated:

- a subclass of a torch optimizer that keeps torch's `step` and `_init_group` gets the drop-in's step;
- any other optimizer gets step hooks, because its step is not known (`_hooked_step.py`).

A generated class has the plain class's name and module. It is pickled as the plain class and generated again when it
is loaded.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from .. import optim
from ._base import Centralized
from ._hooked_step import HookedStep
from ._list_step import ListStep

# torch's classes and the drop-in classes that replace them
_DROP_INS: dict[type, type] = {
    getattr(torch.optim, name): getattr(optim, name) for name in optim.__all__ if hasattr(torch.optim, name)
}


@functools.cache
def centralized_class(plain: type) -> type:
    """Return the class with GC that replaces an optimizer class."""
    if plain in _DROP_INS:
        return _DROP_INS[plain]
    if issubclass(plain, Centralized):
        return plain
    for torch_class, drop_in in _DROP_INS.items():
        listed = issubclass(plain, torch_class) and issubclass(drop_in, ListStep)
        if listed and _keeps_step(plain, torch_class):
            mixin = next(base for base in drop_in.__bases__ if issubclass(base, ListStep))
            return _generate(plain, mixin, {"step": drop_in.__dict__["step"]})
    return _generate(plain, HookedStep, {})


def plain_class(centralized: type) -> type:
    """Return the class that a class with GC replaced.

    SGDW and users' subclasses of drop-in classes replaced none: they stay, with GC switched off.
    """
    for torch_class, drop_in in _DROP_INS.items():
        if centralized is drop_in:
            return torch_class
    return centralized.__dict__.get("_gradcent_plain", centralized)  # type: ignore[no-any-return]


def _keeps_step(plain: type, torch_class: type) -> bool:
    """Whether a subclass keeps torch's own step: only then is its step known."""
    return all(
        inspect.unwrap(getattr(plain, name)) is inspect.unwrap(getattr(torch_class, name))
        for name in ("step", "_init_group")
    )


def _generate(plain: type, mixin: type, members: dict[str, Any]) -> type:
    def reduce(self: Any) -> tuple[Any, ...]:
        return _new_instance, (plain,), self.__getstate__()

    def parent_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return super(plain, self).step(*args, **kwargs)  # type: ignore[arg-type]

    # detectron2's classes call `super(type(self), self).step` and mean the parent of the plain class. This class
    # follows the generated one in the MRO, so that the call reaches that parent.
    parent = type("ParentStep", (), {"step": parent_step})

    def mro(cls: type) -> list[type]:
        generated, *bases = [base for base in type.mro(cls) if base is not object]
        mixins_first = sorted(bases, key=lambda base: not issubclass(base, Centralized))
        return [generated, parent, *mixins_first, object]

    # Python replaces an object's class only by one of the same memory layout, which it takes from the first base.
    # So the plain class is the first base, and this metaclass puts the mixin before it in the MRO.
    metaclass = type(type(plain).__name__, (type(plain),), {"mro": mro})
    members = {
        "__module__": plain.__module__,
        "__doc__": plain.__doc__,
        "__reduce__": reduce,
        "_gradcent_plain": plain,
        "step": mixin.__dict__.get("step", plain.step),  # type: ignore[attr-defined]
        **members,
    }
    generated: type = metaclass(plain.__name__, (plain, mixin), members)
    generated.__qualname__ = plain.__qualname__
    return generated


def _new_instance(plain: type) -> Any:
    centralized: Any = centralized_class(plain)
    return centralized.__new__(centralized)
