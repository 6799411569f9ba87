"""Find the weight vectors of any JAX function: ``dot_general`` and ``conv_general_dilated`` carry their dims.

The function is turned into a jaxpr, and each array of it is traced back to the parameter it is a view of, as
``gradcent/plan/watch.py`` does for torch. Nothing is computed, so there are roles but no levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..plan.provenance import Decoded, Factor, layout_of
from ..plan.traced import Finding, Role, Traced
from ..plan.usage import Origin
from . import require


@dataclass(frozen=True)
class Array:
    """What is known of one array: what it depends on, and the parameters that it holds."""

    origin: Origin = Origin.CONSTANT
    held: tuple[tuple[int, Decoded], ...] = ()  # (parameter, the factors that each dim walks over)

    @property
    def is_data(self) -> bool:
        """Whether a layer may read it as its input."""
        return self.origin > Origin.CONSTANT


@dataclass
class Usage:
    """How the function uses one parameter."""

    contracted: set[frozenset[Factor]] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    origins: set[Origin] = field(default_factory=set)  # of the data that it is contracted with
    other: set[str] = field(default_factory=set)


def trace(function: Callable[..., Any], params: Any, inputs: Sequence[Any]) -> list[Traced]:
    """Return what the function ``function(params, *inputs)`` shows about each leaf of ``params``."""
    jax = require("jax")
    leaves, tree = jax.tree_util.tree_flatten(params)
    flat_inputs, input_tree = jax.tree_util.tree_flatten(tuple(inputs))

    def flat(*arrays: Any) -> Any:
        given = jax.tree_util.tree_unflatten(tree, arrays[: len(leaves)])
        return function(given, *jax.tree_util.tree_unflatten(input_tree, arrays[len(leaves) :]))

    jaxpr = jax.make_jaxpr(flat)(*leaves, *flat_inputs).jaxpr
    usages = [Usage() for _ in leaves]
    arrays = [Array(held=((index, _identity(leaf.shape)),)) for index, leaf in enumerate(leaves)]
    _run(jaxpr, [*arrays, *[Array(Origin.INPUT)] * len(flat_inputs)], usages)
    return [_conclude(tuple(leaf.shape), usage) for leaf, usage in zip(leaves, usages, strict=True)]


def _conclude(shape: tuple[int, ...], usage: Usage) -> Traced:
    kind: Any = "conv" if "conv" in usage.kinds else "linear" if usage.kinds else None
    role: Role | None = None
    if usage.origins:
        role = "input" if Origin.INPUT in usage.origins else "hidden"

    def left_alone(finding: Finding, text: str) -> Traced:
        return Traced(finding, None, text, kind, role)

    if "gather" in usage.other:
        return left_alone(Finding.INDEXED, "used by indexing, as an embedding table is")
    if not usage.contracted:
        if usage.other - {"elementwise"}:
            return left_alone(Finding.UNCLEAR, f"used by {', '.join(sorted(usage.other))}")
        if usage.other:
            return left_alone(Finding.ELEMENTWISE, "used elementwise only: no output contracts over it")
        return Traced(Finding.UNREACHED, None, "not reached by the example")
    if len(usage.contracted) > 1:
        text = "contracted over different dims in different places: choose by override"
        return left_alone(Finding.AMBIGUOUS, text)
    layout = layout_of(shape, next(iter(usage.contracted)))
    if layout is None:
        text = "its weight vectors do not fit a (batch, outer, vectors, inner) view"
        return left_alone(Finding.UNFIT, text)
    return Traced(Finding.CONTRACTED, layout, "", kind, role)


def _run(jaxpr: Any, arguments: Sequence[Array], usages: list[Usage]) -> list[Array]:
    """Go through the equations of a jaxpr; return what its outputs are."""
    known: dict[Any, Array] = dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Array:
        return Array() if hasattr(atom, "val") else known.get(atom, Array())

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        known.update(zip(equation.outvars, _step(equation, operands, usages), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _step(equation: Any, operands: list[Array], usages: list[Usage]) -> list[Array]:
    name, params = equation.primitive.name, equation.params
    count = len(equation.outvars)
    origin = max((operand.origin for operand in operands), default=Origin.CONSTANT)
    is_data = origin > Origin.CONSTANT
    holds_parameter = any(operand.held and not operand.is_data for operand in operands)
    if name in ("dot_general", "conv_general_dilated"):
        _contract(name, params, equation, operands, usages)
        learned = is_data and holds_parameter
        return [Array(Origin.HIDDEN if learned else origin)] * count
    inner = next((params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params), None)
    if inner is not None and name != "while":
        closed = getattr(inner, "jaxpr", inner)
        if name == "scan":
            operands = _of_one_step(operands, params["num_consts"] + params["num_carry"])
            if len(closed.invars) == len(operands):
                return _run_scan(closed, operands, params, usages)
        if len(closed.invars) == len(operands):
            return _run(closed, operands, usages)
    if name == "split" and not is_data:
        return [Array(held=_slice_to(output.aval.shape, operands[0]) or ()) for output in equation.outvars]
    held = None if is_data else _VIEWS.get(name, _elementwise)(equation, operands)
    if held is None:
        use = "elementwise" if is_data and name in _ELEMENTWISE_WITH_DATA else name
        use = "elementwise" if name.startswith("reduce_") else use
        for operand in operands:
            for parameter, _ in () if operand.is_data else operand.held:
                usages[parameter].other.add(use if use != "dynamic_slice" else "gather")
    if name == "gather" and holds_parameter:  # a look-up in a table
        origin = Origin.HIDDEN
    return [Array(origin, held or ())] * count


def _of_one_step(operands: list[Array], unsliced: int) -> list[Array]:
    """Return the operands as the body of a scan sees them: one index of the stacked arguments."""
    sliced = [
        Array(array.origin, tuple((index, decoded[1:]) for index, decoded in array.held))
        for array in operands[unsliced:]
    ]
    return [*operands[:unsliced], *sliced]


def _run_scan(body: Any, operands: list[Array], params: Any, usages: list[Usage]) -> list[Array]:
    """Go through the body of a scan, again if the first iteration changes the origin of what it carries over."""
    outputs = _run(body, operands, usages)
    start, stop = params["num_consts"], params["num_consts"] + params["num_carry"]
    carried = [
        Array(max(before.origin, after.origin), before.held)
        for before, after in zip(operands[start:stop], outputs, strict=False)
    ]
    if carried != operands[start:stop]:
        outputs = _run(body, [*operands[:start], *carried, *operands[stop:]], usages)
    return outputs


def _contract(name: str, params: Any, equation: Any, operands: list[Array], usages: list[Usage]) -> None:
    if name == "dot_general":
        contracted = params["dimension_numbers"][0]
        kind = "linear"
    else:
        kernel = params["dimension_numbers"].rhs_spec  # (out, in, k…)
        contracted, kind = ((), tuple(kernel[1:])), "conv"
    for side, other in ((0, 1), (1, 0)):
        if operands[side].is_data:
            continue
        for parameter, decoded in operands[side].held:
            if not operands[other].is_data or (kind == "conv" and side == 0):
                usages[parameter].other.add(f"{name} without data")
                continue
            factors = [factor for dim in contracted[side] for factor in decoded[dim]]
            kept = [f for dim, fs in enumerate(decoded) if dim not in contracted[side] for f in fs]
            repeated = kept and all(factor.dim is None for factor in kept)  # one scale for all outputs
            if repeated or any(factor.dim is None for factor in factors):
                usages[parameter].other.add("elementwise")
                continue
            usages[parameter].origins.add(operands[other].origin)
            usages[parameter].contracted.add(frozenset(factors))
            usages[parameter].kinds.add(kind)


def _identity(shape: Sequence[int]) -> Decoded:
    return [[Factor(dim, size, 1)] if size > 1 else [] for dim, size in enumerate(shape)]


Held = tuple[tuple[int, Decoded], ...]


def _map(operand: Array, function: Callable[[Decoded], Decoded | None]) -> Held | None:
    pairs = [(index, function(decoded)) for index, decoded in operand.held]
    return tuple((index, decoded) for index, decoded in pairs if decoded is not None) or None


def _reshape(equation: Any, operands: list[Array]) -> Held | None:
    sizes = equation.outvars[0].aval.shape

    def regroup(decoded: Decoded) -> Decoded | None:
        if any(math.prod(f.size for f in fs) != size for fs, size in zip(decoded, old, strict=True) if fs):
            return None
        flat = [factor for factors in reversed(decoded) for factor in factors]  # innermost first
        result: Decoded = []
        for size in reversed(sizes):
            part: list[Factor] = []
            while size > 1:
                if not flat:
                    return None
                factor = flat.pop(0)
                taken = math.gcd(factor.size, size)
                if taken not in (factor.size, size):
                    return None
                part.append(Factor(factor.dim, taken, factor.step))
                if factor.size > taken:
                    step = factor.step * taken
                    flat.insert(0, Factor(factor.dim, factor.size // taken, step))
                size //= taken
            result.append(part)
        return result[::-1]

    old = equation.invars[0].aval.shape
    return _map(operands[0], regroup)


def _broadcast(equation: Any, operands: list[Array]) -> Held | None:
    shape, dims = equation.params["shape"], equation.params["broadcast_dimensions"]
    old = equation.invars[0].aval.shape

    def place(decoded: Decoded) -> Decoded:
        result: Decoded = [[Factor(None, size, 1)] if size > 1 else [] for size in shape]
        for dim, factors, size in zip(dims, decoded, old, strict=True):
            if size == shape[dim]:
                result[dim] = factors
        return result

    return _map(operands[0], place)


def _squeeze(equation: Any, operands: list[Array]) -> Held | None:
    gone = equation.params["dimensions"]
    return _map(operands[0], lambda decoded: [fs for dim, fs in enumerate(decoded) if dim not in gone])


def _slice(equation: Any, operands: list[Array]) -> Held | None:
    if equation.params.get("strides"):
        return None
    return _slice_to(equation.outvars[0].aval.shape, operands[0])


def _slice_to(sizes: Sequence[int], operand: Array) -> Held | None:
    def cut(decoded: Decoded) -> Decoded | None:
        result: Decoded = []
        for factors, size in zip(decoded, sizes, strict=True):
            whole = math.prod(factor.size for factor in factors)
            if size in (whole, 1):
                result.append(factors if size == whole else [])
            elif len(factors) == 1:
                result.append([Factor(factors[0].dim, size, factors[0].step)])
            else:
                return None
        return result

    return _map(operand, cut)


def _elementwise(equation: Any, operands: list[Array]) -> Held | None:
    shape = equation.outvars[0].aval.shape if equation.outvars else ()
    if equation.primitive.name not in _ELEMENTWISE:
        return None
    held: list[tuple[int, Decoded]] = []
    for atom, operand in zip(equation.invars, operands, strict=True):
        old = getattr(atom.aval, "shape", ())
        if len(old) != len(shape):
            continue
        for index, decoded in operand.held:
            sizes = zip(decoded, old, shape, strict=True)
            held.append(
                (index, [fs if was == is_now else [Factor(None, is_now, 1)] for fs, was, is_now in sizes])
            )
    return tuple(held) or None


_VIEWS: dict[str, Callable[[Any, list[Array]], Held | None]] = {
    "broadcast_in_dim": _broadcast,
    "dynamic_slice": _slice,
    "reshape": _reshape,
    "rev": lambda equation, operands: _map(operands[0], lambda decoded: decoded),
    "slice": _slice,
    "squeeze": _squeeze,
    "transpose": lambda equation, operands: _map(
        operands[0], lambda decoded: [decoded[dim] for dim in equation.params["permutation"]]
    ),
}
_ELEMENTWISE = {
    *("abs", "add", "add_any", "convert_element_type", "copy", "copy_p", "cos", "div", "erf", "exp", "expm1"),
    *("integer_pow", "log", "log1p", "logistic", "max", "min", "mul", "neg", "optimization_barrier", "pow"),
    *("rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tanh"),
}
_ELEMENTWISE_WITH_DATA = _ELEMENTWISE | {"atan2", "broadcast_in_dim", "clamp", "concatenate", "reshape"}
