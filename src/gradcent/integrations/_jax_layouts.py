"""Which dims of a JAX parameter form one weight vector, by the module that owns it.

Flax stores kernels as (…, in, out), so a vector runs over all dims but the last; its attention splits
`in` or `out` over several dims; Equinox stores weights as PyTorch does. The rules are found by module
type's name, for Flax's linen and nnx and for Equinox, and say in words why a parameter is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..layout import Layout
from . import require

Path = tuple[str, ...]
Answer = Layout | str
Shape = tuple[int, ...]


def last_is_out(shape: Shape) -> Layout:
    """(…, in, out): Flax's Dense and Conv, grouped and depthwise too."""
    return Layout(1, math.prod(shape[:-1]), shape[-1], 1)


def first_are_in(shape: Shape, inputs: int) -> Layout:
    """(in…, out…) with that many input dims: DenseGeneral, and attention's projections."""
    return Layout(1, math.prod(shape[:inputs]), math.prod(shape[inputs:]), 1)


def _flax(module: Any, name: str, shape: Shape) -> tuple[str, Answer]:
    kind = _kind(module)
    if name != "kernel":
        reason = "embedding" if name == "embedding" else "bias" if "bias" in name else "not a kernel"
        return kind, reason
    if kind in ("DenseGeneral", "LinearGeneral"):
        axis = module.axis if isinstance(module.axis, tuple) else (module.axis,)
        batch = getattr(module, "batch_dims", None) or getattr(module, "batch_axis", None)
        if batch:
            return kind, "DenseGeneral with batch dims: choose by override"
        return kind, first_are_in(shape, len(axis))
    if kind == "ConvTranspose" and module.transpose_kernel:  # (k…, out, in)
        return kind, Layout(1, math.prod(shape[:-2]), shape[-2], shape[-1])
    if kind in ("Dense", "Linear", "Conv", "ConvTranspose"):
        return kind, last_is_out(shape)
    return kind, f"own parameter of {type(module).__name__}, a kind of module gradcent does not know"


def _equinox(module: Any, name: str, shape: Shape) -> tuple[str, Answer]:
    kind = _kind(module)
    if "bias" in name:
        return kind, "bias"
    if kind == "Linear" and name == "weight" and len(shape) == 2:
        return kind, Layout.rows(shape)
    if kind in ("Conv", "ConvTranspose") and name == "weight":  # both (out, in/groups, k…)
        return kind, Layout.rows(shape)
    if kind in ("GRUCell", "LSTMCell") and name in ("weight_ih", "weight_hh"):
        return kind, Layout.rows(shape)
    if kind == "Embedding":
        return kind, "embedding"
    if kind.endswith("Norm"):
        return kind, "scale of a normalization"
    return kind, f"own parameter of {type(module).__name__}, a kind of module gradcent does not know"


def _kind(module: Any) -> str:
    """Return the name of the nearest class that Flax or Equinox brings: subclasses count as their parent."""
    packages = ("flax", "equinox")
    known = [each for each in type(module).__mro__ if each.__module__.split(".")[0] in packages]
    names = [each.__name__ for each in known]
    # Conv1d, Conv2d and Conv3d of Equinox are Conv; ConvLocal's weights are not shared and stay unknown.
    for name in ("ConvTranspose", "Conv"):
        if name in names and "ConvLocal" not in names:
            return name
    return names[0] if names and names[0] != "Module" else type(module).__name__


def convolution(kind: str) -> bool:
    """Whether `layers="conv"` counts it."""
    return kind in ("Conv", "ConvTranspose")


def linen(model: Any, inputs: tuple[Any, ...]) -> Iterator[tuple[Path, str, Answer, Shape]]:
    """Yield (path, kind, answer, shape) for a flax.linen module; `inputs` are those of its `__call__`."""
    jax, nn = require("jax"), require("flax.linen", "flax")

    owners: dict[Path, Any] = {}

    def note(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        owners[tuple(context.module.path)] = context.module
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        shapes = jax.eval_shape(
            model.init, {"params": jax.random.key(0), "dropout": jax.random.key(1)}, *inputs
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(shapes.get("params", {}))[0]:
        names = normal(path)
        yield names, *_flax(owners.get(names[:-1]), names[-1], tuple(leaf.shape)), tuple(leaf.shape)


def nnx(model: Any) -> Iterator[tuple[Path, str, Answer, Shape]]:
    """Yield the same for a flax.nnx module."""
    jax, flax_nnx = require("jax"), require("flax.nnx", "flax")

    owners = {tuple(map(str, path)): module for path, module in flax_nnx.iter_modules(model)}
    for path, leaf in jax.tree_util.tree_flatten_with_path(flax_nnx.state(model, flax_nnx.Param))[0]:
        names = normal(path)
        yield names, *_flax(owners.get(names[:-1]), names[-1], tuple(leaf.shape)), tuple(leaf.shape)


def equinox(model: Any) -> Iterator[tuple[Path, str, Answer, Shape]]:
    """Yield the same for an Equinox module (or a pytree of them)."""
    jax, eqx = require("jax"), require("equinox")

    def walk(node: Any, path: Path, owner: Any) -> Iterator[tuple[Path, str, Answer, Shape]]:
        inner = node if isinstance(node, eqx.Module) else owner
        leaves = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda each: each is not node)[0]
        for key, leaf in leaves:
            names = path + normal(key)
            if eqx.is_inexact_array(leaf):
                yield names, *_equinox(inner, names[-1], tuple(leaf.shape)), tuple(leaf.shape)
            elif not jax.tree_util.all_leaves([leaf]):
                yield from walk(leaf, names, inner)

    return walk(model, (), None)


def normal(path: Any) -> Path:
    """Return a JAX key path as plain strings, without the collection's name and nnx's `.value`."""
    names = []
    for key in path:
        for field in ("key", "name", "idx"):
            if hasattr(key, field):
                names.append(str(getattr(key, field)))
                break
    last = path[-1] if path else None
    if len(names) > 1 and names[-1] == "value" and getattr(last, "name", None) == "value":
        names.pop()
    return tuple(names[1:] if len(names) > 1 and names[0] == "params" else names)
