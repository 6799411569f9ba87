"""Which dims of a JAX parameter form one weight vector, by the module that owns it.

Flax stores kernels as (…, in, out), so a vector runs over all dims but the last; its attention splits
`in` or `out` over several dims; Equinox stores weights as PyTorch does. The rules are found by module
type's name, for Flax's linen and nnx and for Equinox, and say in words why a parameter is left alone.
Layers stacked by scan or vmap have one dim more than the layer itself: it tells vectors apart.
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


def _flax(module: Any, name: str, shape: Shape, own: Shape | None) -> tuple[str, Answer]:
    """Answer for a parameter of a Flax module; ``own`` is its shape in the layer, where that is known."""
    kind = _kind(module)
    if name != "kernel":
        reason = "embedding" if name == "embedding" else "bias" if "bias" in name else "not a kernel"
        return kind, reason
    if kind in ("DenseGeneral", "LinearGeneral"):
        axis = module.axis if isinstance(module.axis, tuple) else (module.axis,)
        batch = getattr(module, "batch_dims", None) or getattr(module, "batch_axis", None)
        if batch:
            return kind, "DenseGeneral with batch dims: choose by override"
        return kind, stacked(shape, own, lambda layer: first_are_in(layer, len(axis)))
    if kind == "ConvTranspose" and module.transpose_kernel:  # (k…, out, in)
        return kind, stacked(shape, own, lambda layer: Layout(1, math.prod(layer[:-2]), layer[-2], layer[-1]))
    if kind in ("Dense", "Linear", "Conv", "ConvTranspose"):
        return kind, stacked(shape, own, last_is_out)
    return kind, f"own parameter of {type(module).__name__}, a kind of module gradcent does not know"


def _equinox(module: Any, name: str, shape: Shape) -> tuple[str, Answer]:
    kind = _kind(module)
    if "bias" in name:
        return kind, "bias"
    if kind == "Linear" and name == "weight":
        sizes = tuple(1 if each == "scalar" else each for each in (module.out_features, module.in_features))
        return kind, stacked(shape, sizes, Layout.rows)
    if kind in ("Conv", "ConvTranspose") and name == "weight":  # both (out, in/groups, k…)
        sizes = (module.out_channels, module.in_channels // module.groups, *module.kernel_size)
        return kind, stacked(shape, sizes, Layout.rows)
    if kind in ("GRUCell", "LSTMCell") and name in ("weight_ih", "weight_hh"):
        gates = 3 if kind == "GRUCell" else 4
        inputs = module.input_size if name == "weight_ih" else module.hidden_size
        return kind, stacked(shape, (gates * module.hidden_size, inputs), Layout.rows)
    if kind == "Embedding":
        return kind, "embedding"
    if kind.endswith("Norm"):
        return kind, "scale of a normalization"
    return kind, f"own parameter of {type(module).__name__}, a kind of module gradcent does not know"


def stacked(shape: Shape, own: Shape | None, layer_layout: Callable[[Shape], Layout]) -> Answer:
    """Return the layout of a layer's weight of shape ``own``, also where scan or vmap stacked several of them."""
    if own is None or shape == own:
        return layer_layout(shape)
    extra = len(shape) - len(own)
    found = [at for at in range(len(own) + 1) if shape == (*own[:at], *shape[at : at + extra], *own[at:])]
    if extra < 1 or not found:
        return f"shape {shape} is not the layer's {own}: choose by override"
    inside, at = layer_layout(own), found[0]
    number = math.prod(shape[at : at + extra])
    answers = {_with_stack(inside, own, number, each) for each in found}
    if len(answers) > 1 or None in answers:
        return f"layers of shape {own} stacked to {shape} in a way that is not clear: choose by override"
    return answers.pop()  # type: ignore[return-value]


def _with_stack(inside: Layout, own: Shape, number: int, at: int) -> Layout | None:
    """Put a dim of ``number`` layers before dim ``at`` of a weight; None where no Layout says that."""
    before = math.prod(own[:at])
    for role in (0, 2):  # the dims that tell vectors apart: beside or among these it changes nothing else
        start = math.prod(inside.shape[:role])
        if start <= before <= start * inside.shape[role]:
            sizes = list(inside.shape)
            sizes[role] *= number
            return Layout(*sizes)
    return None


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
    sizes: dict[Path, Shape] = {}

    def note(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        result = call(*args, **kwargs)
        path = tuple(context.module.path)
        owners[path] = context.module
        for name, leaf in context.module.variables.get("params", {}).items():
            if hasattr(leaf, "shape"):
                sizes[(*path, name)] = tuple(leaf.shape)  # of one layer, inside a scan or vmap too
        return result

    with nn.intercept_methods(note):
        shapes = jax.eval_shape(
            model.init, {"params": jax.random.key(0), "dropout": jax.random.key(1)}, *inputs
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(shapes.get("params", {}))[0]:
        names = normal(path)
        shape = tuple(leaf.shape)
        yield names, *_flax(owners.get(names[:-1]), names[-1], shape, sizes.get(names)), shape


def nnx(model: Any) -> Iterator[tuple[Path, str, Answer, Shape]]:
    """Yield the same for a flax.nnx module."""
    jax, flax_nnx = require("jax"), require("flax.nnx", "flax")

    owners = {tuple(map(str, path)): module for path, module in flax_nnx.iter_modules(model)}
    for path, leaf in jax.tree_util.tree_flatten_with_path(flax_nnx.state(model, flax_nnx.Param))[0]:
        names = normal(path)
        owner, shape = owners.get(names[:-1]), tuple(leaf.shape)
        yield names, *_flax(owner, names[-1], shape, _nnx_kernel(owner)), shape


def _nnx_kernel(module: Any) -> Shape | None:
    """Return the shape that the kernel of one nnx layer has, from the sizes it was made with."""
    kind = _kind(module)
    if kind == "Linear":
        return module.in_features, module.out_features
    if kind == "LinearGeneral":
        return *module.in_features, *module.out_features
    if kind in ("Conv", "ConvTranspose"):
        kernel = module.kernel_size if isinstance(module.kernel_size, tuple) else (module.kernel_size,)
        inputs = module.in_features // getattr(module, "feature_group_count", 1)
        turned = getattr(module, "transpose_kernel", False)
        return *kernel, *((module.out_features, inputs) if turned else (inputs, module.out_features))
    return None


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
