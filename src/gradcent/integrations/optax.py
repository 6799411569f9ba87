"""Optax: GC as a gradient transformation that knows Flax's and Equinox's layouts.

    from gradcent.integrations.optax import centralize
    optimizer = optax.chain(optax.add_decayed_weights(5e-4), centralize(model, x), optax.sgd(0.1, momentum=0.9))

Where it stands in the chain says what it does: after `add_decayed_weights` it gives the paper's P(g + λw);
before it, λw stays outside; at the very end it is GC at the update, which keeps the sum of every weight
vector under any optimizer. `optax.centralize` averages the wrong side of Flax's (in, out) kernels.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..layout import Layout
from ..plan import render as table
from ..plan import rules
from ..plan.plan import Entry
from . import _jax_layouts as layouts
from . import logger, require

if TYPE_CHECKING:
    jax: Any
    jnp: Any
    optax: Any
else:
    jax = require("jax")
    jnp = require("jax.numpy", "jax")
    optax = require("optax")


class Plan:
    """The layouts of a JAX model's parameters by path; prints as the table that `gradcent.explain` shows."""

    def __init__(self, entries: Mapping[layouts.Path, Entry]) -> None:
        self.entries = dict(entries)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dict per parameter."""
        return table.rows_of(list(self.entries.values()))

    def totals(self) -> dict[str, Any]:
        """Return the plan's totals as plain data."""
        return table.totals_of(list(self.entries.values()))

    def __str__(self) -> str:
        return table.text(self.rows(), self.totals())


def explain(
    model: Any, *inputs: Any, layers: str = "all", overrides: Mapping[str, Layout | str | None] | None = None
) -> Plan:
    """Plan a flax.linen module (with the inputs of its call), a flax.nnx module or an Equinox module."""
    if layers not in ("all", "conv", "linear"):
        raise ValueError(f'layers must be "all", "conv" or "linear", got {layers!r}')
    entries: dict[layouts.Path, Entry] = {}
    unused = set(overrides or {})
    for path, kind, answer, shape in _walk(model, inputs):
        name = ".".join(path)
        pattern = next((each for each in overrides or {} if fnmatch.fnmatchcase(name, each)), None)
        if pattern is not None:
            unused.discard(pattern)
            answer = rules.overridden((overrides or {})[pattern], shape, pattern, name)
        elif (
            isinstance(answer, Layout) and layers != "all" and layouts.convolution(kind) != (layers == "conv")
        ):
            answer = f'not a {layers} layer, and layers="{layers}"'
        if isinstance(answer, Layout) and answer.length == 1:
            answer = "vectors of length 1: centralizing would freeze them for ever"
        layout, reason = (answer, "") if isinstance(answer, Layout) else (None, answer)
        entries[path] = Entry(name, kind, shape, layout, reason)
    if unused:
        names = ", ".join(".".join(path) for path in list(entries)[:3])
        raise ValueError(f"override pattern {min(unused)!r} matches no parameter; names look like {names}")
    if not any(entry.layout for entry in entries.values()):
        raise ValueError("nothing would be centralized in this model; overrides= teaches it your own layers")
    return Plan(entries)


def centralize(model: Any, *inputs: Any, layers: str = "all", overrides: Any = None) -> Any:
    """Return the transformation for a model (or for a ready :class:`Plan`); arguments as for `explain`."""
    plan = model if isinstance(model, Plan) else explain(model, *inputs, layers=layers, overrides=overrides)
    logger.info("gradcent: %s", table.summary(plan.rows(), plan.totals()))

    def init(params: Any) -> Any:
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
            _entry(plan, path, leaf)
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def one(path: Any, gradient: Any) -> Any:
            layout = _entry(plan, path, gradient).layout
            return gradient if layout is None else centralized(gradient, layout)

        return jax.tree_util.tree_map_with_path(one, updates), state

    return optax.GradientTransformation(init, update)


def centralized(gradient: Any, layout: Layout) -> Any:
    """Φ on one array: Eq. 1 of the paper, in two passes and in float32 for half types, as in operator.py."""
    shape, dims = layout.split(gradient.shape)
    half = gradient.dtype in (jnp.float16, jnp.bfloat16)
    vectors = gradient.reshape(shape).astype(jnp.float32 if half else gradient.dtype)
    rest = vectors - vectors.mean(dims, keepdims=True)
    rest = rest - rest.mean(dims, keepdims=True)  # what rounding the first mean left
    return rest.reshape(gradient.shape).astype(gradient.dtype)


def _walk(model: Any, inputs: tuple[Any, ...]) -> Any:
    packages = {f"{each.__module__}.{each.__name__}" for each in type(model).__mro__}
    if any(name.startswith("flax.linen.") for name in packages):
        if not inputs:
            raise TypeError(
                "a flax.linen module shows its layers only when it is called: pass its inputs as well, "
                "centralize(model, x); shapes are enough (jax.ShapeDtypeStruct)"
            )
        return layouts.linen(model, inputs)
    if any(name.startswith("flax.nnx.") for name in packages):
        return layouts.nnx(model)
    if any(name.startswith("equinox.") for name in packages):
        return layouts.equinox(model)
    raise TypeError(f"expected a flax.linen, flax.nnx or Equinox module, got {type(model).__name__}")


def _entry(plan: Plan, path: Any, leaf: Any) -> Entry:
    names = layouts.normal(path)
    entry = plan.entries.get(names)
    if entry is None or entry.shape != tuple(leaf.shape):
        planned = "of another shape there" if entry else "not in the model that was given"
        raise ValueError(
            f"gradcent: parameter {'.'.join(names)} of shape {tuple(leaf.shape)} is {planned}; "
            "plan the model whose parameters are trained"
        )
    return entry
