"""Which dims of a JAX parameter form one weight vector, by the module that owns it.

Flax stores kernels as (…, in, out), so a vector runs over all dims but the last; its attention splits
`in` or `out` over several dims; Equinox stores weights as PyTorch does. The rules are looked up by the name
of the module's type, for Flax's linen and nnx and for Equinox.
Layers stacked by scan or vmap have one dim more than the layer itself; it separates weight vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..layout import Layout
from ..plan.entry import Answer, Reason, ReasonCode
from ..plan.parameter import Parameter, Resolved, Use
from . import require

Path = tuple[str, ...]
Shape = tuple[int, ...]


class JaxRules:
    """The rules for Flax and Equinox modules (:class:`gradcent.plan.parameter.Resolver`).

    ``layer_shapes`` gives, where it is known, the shape that a parameter has in a single layer; the parameter itself
    has one dim more where scan or vmap stacked several layers.
    """

    noun = "parameter"
    module_base: type | None = None

    def __init__(self, equinox: bool, layer_shapes: dict[str, Shape | None]) -> None:
        self.equinox, self.layer_shapes = equinox, layer_shapes

    def resolve(self, use: Use, shape: Shape) -> Resolved | None:
        """Return the layout or the reason for one parameter; None if no rule applies."""
        layer_shape = self.layer_shapes.get(use.name)
        if self.equinox:
            answer = _equinox(use.owner, use.local_name, shape)
        else:
            answer = _flax(use.owner, use.local_name, shape, layer_shape)
        return None if answer is None else Resolved(answer, "conv" if _is_conv(use.owner) else "linear")

    def module_name(self, use: Use) -> str:
        """Return the name of the owner's Flax or Equinox class."""
        return _kind(use.owner)

    def contains(self, module_type: type) -> bool:
        """Overrides by module type are not supported for JAX models."""
        return False


class FunctionRules(JaxRules):
    """No rules: a plain function's parameters belong to no module."""

    def __init__(self) -> None:
        super().__init__(equinox=False, layer_shapes={})

    def resolve(self, use: Use, shape: Shape) -> Resolved | None:
        """Return None: the trace decides."""
        return None

    def module_name(self, use: Use) -> str:
        """Return the function's name."""
        return getattr(use.owner, "__name__", type(use.owner).__name__)


Found = tuple[Parameter, Shape | None]  # the parameter, and its shape in a single layer where that is known


def _parameter(path: Path, owner: Any, shape: Shape) -> Parameter:
    return Parameter(path, shape, (Use(".".join(path), owner, path[-1]),))


def last_is_out(shape: Shape) -> Layout:
    """(…, in, out): Flax's Dense and Conv, grouped and depthwise too."""
    return Layout(1, math.prod(shape[:-1]), shape[-1], 1)


def first_are_in(shape: Shape, inputs: int) -> Layout:
    """(in…, out…) with that many input dims: DenseGeneral, and attention's projections."""
    return Layout(1, math.prod(shape[:inputs]), math.prod(shape[inputs:]), 1)


def _flax(module: Any, name: str, shape: Shape, layer_shape: Shape | None) -> Answer | None:
    kind = _kind(module)
    if name == "embedding":
        return Reason(ReasonCode.EMBEDDING, "embedding")
    if name != "kernel":
        return (
            Reason(ReasonCode.BIAS, "bias")
            if "bias" in name
            else Reason(ReasonCode.NOT_A_WEIGHT, "not a kernel")
        )
    if kind in ("DenseGeneral", "LinearGeneral"):
        axis = module.axis if isinstance(module.axis, tuple) else (module.axis,)
        batch = getattr(module, "batch_dims", None) or getattr(module, "batch_axis", None)
        if batch:
            text = "DenseGeneral with batch dims: choose by override"
            return Reason(ReasonCode.UNCLEAR_DIMS, text)
        return stacked(shape, layer_shape, lambda layer: first_are_in(layer, len(axis)))
    if kind == "ConvTranspose" and module.transpose_kernel:  # (k…, out, in)
        return stacked(
            shape, layer_shape, lambda layer: Layout(1, math.prod(layer[:-2]), layer[-2], layer[-1])
        )
    if kind in ("Dense", "Linear", "Conv", "ConvTranspose"):
        return stacked(shape, layer_shape, last_is_out)
    return None


def _equinox(module: Any, name: str, shape: Shape) -> Answer | None:
    kind = _kind(module)
    if "bias" in name:
        return Reason(ReasonCode.BIAS, "bias")
    if kind == "Linear" and name == "weight":
        sizes = tuple(1 if size == "scalar" else size for size in (module.out_features, module.in_features))
        return stacked(shape, sizes, Layout.rows)
    if kind in ("Conv", "ConvTranspose") and name == "weight":  # both (out, in/groups, k…)
        sizes = (module.out_channels, module.in_channels // module.groups, *module.kernel_size)
        return stacked(shape, sizes, Layout.rows)
    if kind in ("GRUCell", "LSTMCell") and name in ("weight_ih", "weight_hh"):
        gates = 3 if kind == "GRUCell" else 4
        inputs = module.input_size if name == "weight_ih" else module.hidden_size
        return stacked(shape, (gates * module.hidden_size, inputs), Layout.rows)
    if kind == "Embedding":
        return Reason(ReasonCode.EMBEDDING, "embedding")
    if kind.endswith("Norm"):
        return Reason(ReasonCode.NORM_SCALE, "scale of a normalization")
    return None


def stacked(shape: Shape, layer_shape: Shape | None, layout_of: Callable[[Shape], Layout]) -> Answer:
    """Return the layout of a layer's weight, also where scan or vmap stacked the weights of several layers."""
    if layer_shape is None or shape == layer_shape:
        return layout_of(shape)
    extra = len(shape) - len(layer_shape)
    places = [
        at
        for at in range(len(layer_shape) + 1)
        if shape == (*layer_shape[:at], *shape[at : at + extra], *layer_shape[at:])
    ]
    if extra < 1 or not places:
        text = f"shape {shape} is not the layer's {layer_shape}: choose by override"
        return Reason(ReasonCode.SHAPE_MISMATCH, text)
    single, first = layout_of(layer_shape), places[0]
    number = math.prod(shape[first : first + extra])
    layouts = {_with_stack(single, layer_shape, number, at) for at in places}
    layout = layouts.pop()
    if layouts or layout is None:
        text = (
            f"layers of shape {layer_shape} stacked to {shape} in a way that is not clear: choose by override"
        )
        return Reason(ReasonCode.UNCLEAR_DIMS, text)
    return layout


def _with_stack(single: Layout, layer_shape: Shape, number: int, at: int) -> Layout | None:
    """Insert a dim of ``number`` layers before dim ``at`` of a weight; None where no Layout describes that."""
    before = math.prod(layer_shape[:at])
    for role in (0, 2):  # batch and vectors: in or beside these dims the new one changes no mean
        start = math.prod(single.shape[:role])
        if start <= before <= start * single.shape[role]:
            sizes = list(single.shape)
            sizes[role] *= number
            return Layout(*sizes)
    return None


def _kind(module: Any) -> str:
    """Return the name of the nearest Flax or Equinox class in the MRO: subclasses count as their parent."""
    packages = ("flax", "equinox")
    names = [cls.__name__ for cls in type(module).__mro__ if cls.__module__.split(".")[0] in packages]
    # Conv1d, Conv2d and Conv3d of Equinox are Conv; ConvLocal's weights are not shared and stay unknown.
    for name in ("ConvTranspose", "Conv"):
        if name in names and "ConvLocal" not in names:
            return name
    return names[0] if names and names[0] != "Module" else type(module).__name__


def _is_conv(module: Any) -> bool:
    return _kind(module) in ("Conv", "ConvTranspose")


def linen(model: Any, inputs: tuple[Any, ...]) -> Iterator[Found]:
    """Yield the parameters of a flax.linen module; `inputs` are those of its `__call__`."""
    jax, nn = require("jax"), require("flax.linen", "flax")

    owners: dict[Path, Any] = {}
    sizes: dict[Path, Shape] = {}

    def record(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        result = call(*args, **kwargs)
        path = tuple(context.module.path)
        owners[path] = context.module
        for name, leaf in context.module.variables.get("params", {}).items():
            if hasattr(leaf, "shape"):
                sizes[(*path, name)] = tuple(leaf.shape)  # of one layer, inside a scan or vmap too
        return result

    with nn.intercept_methods(record):
        shapes = jax.eval_shape(
            model.init, {"params": jax.random.key(0), "dropout": jax.random.key(1)}, *inputs
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(shapes.get("params", {}))[0]:
        names = normal(path)
        shape = tuple(leaf.shape)
        yield _parameter(names, owners.get(names[:-1]), shape), sizes.get(names)


def nnx(model: Any) -> Iterator[Found]:
    """Yield the parameters of a flax.nnx module."""
    jax, flax_nnx = require("jax"), require("flax.nnx", "flax")

    owners = {tuple(map(str, path)): module for path, module in flax_nnx.iter_modules(model)}
    for path, leaf in jax.tree_util.tree_flatten_with_path(flax_nnx.state(model, flax_nnx.Param))[0]:
        names = normal(path)
        owner, shape = owners.get(names[:-1]), tuple(leaf.shape)
        yield _parameter(names, owner, shape), _nnx_kernel(owner)


def _nnx_kernel(module: Any) -> Shape | None:
    """Return the shape of the kernel of one nnx layer, from the sizes in its constructor."""
    kind = _kind(module)
    if kind == "Linear":
        return module.in_features, module.out_features
    if kind == "LinearGeneral":
        return *module.in_features, *module.out_features
    if kind in ("Conv", "ConvTranspose"):
        kernel = module.kernel_size if isinstance(module.kernel_size, tuple) else (module.kernel_size,)
        inputs = module.in_features // getattr(module, "feature_group_count", 1)
        transposed = getattr(module, "transpose_kernel", False)
        return *kernel, *((module.out_features, inputs) if transposed else (inputs, module.out_features))
    return None


def equinox(model: Any) -> Iterator[Found]:
    """Yield the parameters of an Equinox module (or a pytree of them)."""
    jax, eqx = require("jax"), require("equinox")

    def walk(node: Any, path: Path, owner: Any) -> Iterator[Found]:
        inner = node if isinstance(node, eqx.Module) else owner
        leaves = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda child: child is not node)[0]
        for key, leaf in leaves:
            names = path + normal(key)
            if eqx.is_inexact_array(leaf):
                yield _parameter(names, inner, tuple(leaf.shape)), None
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
