"""Watch one forward pass: which dims of each parameter are contracted, and with what.

Every tensor of the pass is one of three things. It *holds parameters* if it is a view, a copy or an elementwise
function of parameters and constants. It is *data* if it depends on the model's inputs. Anything else is constant:
buffers, position indices, masks. A contraction of a tensor that holds a parameter with data shows the parameter's
weight vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from . import contractions, follow
from .contractions import Contraction, Level
from .provenance import Decoded, Factor, contracted, identity, source_of
from .usage import Evidence, Held, Origin, StorageMap, Usage, has_storage

_AS_DATA = "as the data of a contraction"


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode that fills ``usage``, which is parallel to ``parameters``."""

    def __init__(self, parameters: Iterable[Tensor], inputs: Iterable[Tensor], *, levels: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = list(parameters)
        self.usage = [Usage() for _ in self.parameters]
        self.levels = levels
        self.overwritten: dict[int, Tensor] = {}  # values of parameters that the forward pass writes to
        self._held: StorageMap[Held] = StorageMap()
        self._origins: StorageMap[Origin] = StorageMap()
        for index, parameter in enumerate(self.parameters):
            if not has_storage(parameter):
                continue
            held = self._held.get(parameter)
            source = source_of(index, parameter, identity(parameter))
            # Several parameters may be parts of one storage: the flat weights of an RNN.
            self._held.set(parameter, Held((*(held.sources if held else ()), source)))
        for tensor in inputs:
            if has_storage(tensor):
                self._origins.set(tensor, Origin.INPUT)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _in_backward():  # a backward pass inside the forward pass
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        operands = [tensor for tensor in tree_iter((args, kwargs)) if has_storage(tensor)]
        if func._schema.is_mutable:
            self._save_overwritten(func, args)
        found = contractions.of(func, args, kwargs)
        for contraction in found:
            self._contract(contraction)
        result = func(*args, **kwargs)
        outputs = [tensor for tensor in tree_iter(result) if has_storage(tensor)]
        if outputs and not _only_views(func, operands, outputs):
            self._follow(func, args, kwargs, operands, outputs, found)
        return result

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

    def _contract(self, contraction: Contraction) -> None:
        left = contraction.left if isinstance(contraction.left, tuple) else (contraction.left,)
        right = contraction.right
        if not all(map(has_storage, (*left, right))):
            return
        left_origin = max(map(self.origin, left))
        held_right = self._usable(right, left_origin, contraction)
        held_left = None
        if not contraction.fixed:
            held_left = self._usable(left[0], self.origin(right), contraction)
        if held_right and held_left and held_left.passed is held_right.passed:
            for held, tensor, dims in (
                (held_right, right, contraction.right_dims),
                (held_left, left[0], contraction.left_dims),
            ):
                self._note(held, tensor, dims, contraction, Evidence.PRODUCT, Origin.CONSTANT, None)
            return
        if held_right and not (held_left and held_right.passed):
            origin = Origin.HIDDEN if contraction.recurrent and left_origin else left_origin
            self._note_weight(held_right, right, contraction.right_dims, contraction, origin, left)
        elif held_left:
            self._note_weight(
                held_left, left[0], contraction.left_dims, contraction, self.origin(right), (right,)
            )
        else:
            self._note_operator(_AS_DATA, (*left, right))

    def _usable(self, tensor: Tensor, other: Origin, contraction: Contraction) -> Held | None:
        """Return what a tensor holds if it can be the weight of a contraction with an operand of that origin."""
        held = self.held(tensor)
        if held is None:
            return None
        if held.mixed:
            return held if contraction.kind == "conv" and tensor is contraction.right else None
        if held.selected:
            return held if other >= Origin.INPUT else None
        return held if self.origin(tensor) is Origin.CONSTANT else None

    def _note_weight(
        self,
        held: Held,
        weight: Tensor,
        dims: tuple[int, ...],
        contraction: Contraction,
        origin: Origin,
        data: tuple[Tensor, ...],
    ) -> None:
        if origin is Origin.CONSTANT and any(self.weights(tensor) for tensor in data):
            origin = Origin.LEARNED
        evidence = Evidence.DATA if origin >= Origin.INPUT else Evidence(origin + 1)
        level = self._level(contraction, weight, data)
        self._note(
            held, weight, dims, contraction, Evidence.KERNEL if held.mixed else evidence, origin, level
        )
        self._note_operator(_AS_DATA, data)

    def _note(
        self,
        held: Held,
        tensor: Tensor,
        dims: tuple[int, ...],
        contraction: Contraction,
        evidence: Evidence,
        origin: Origin,
        level: Level | None,
    ) -> None:
        for source in held.sources:
            usage = self.usage[source.parameter]
            decoded = source.decode(tensor)
            factors = None
            if decoded is not None:
                factors = contracted(_without_groups(decoded, contraction.groups), dims)
                if _is_scale(tensor, decoded, dims):
                    usage.elementwise = True
                    continue
            usage.contractions.setdefault(evidence, set()).add(factors)
            usage.kinds.add(contraction.kind)
            usage.origins.add(origin)
            if level is not None:
                usage.levels.append(level)

    def _level(self, contraction: Contraction, weight: Tensor, data: tuple[Tensor, ...]) -> Level | None:
        if not self.levels or len(data) > 1 or not data[0].is_floating_point() or contraction.recurrent:
            return None
        if contraction.level is not None:
            return contraction.level()
        dims = contraction.left_dims if weight is contraction.right else contraction.right_dims
        return contractions.level_of(data[0], dims) if dims else None

    def _follow(
        self,
        func: Any,
        args: Any,
        kwargs: Mapping[str, Any],
        operands: list[Tensor],
        outputs: list[Tensor],
        found: list[Contraction],
    ) -> None:
        """Work out what the outputs are."""
        name = contractions.operator_name(func)
        origin = max(map(self.origin, operands), default=Origin.CONSTANT)
        held: Held | None = None
        holding = [(tensor, weights) for tensor in operands if (weights := self.weights(tensor)) is not None]
        if found:
            held, origin = self._after_contraction(name, args, outputs[0], found, origin)
            inside = {id(tensor) for contraction in found for tensor in _operands(contraction)}
            self._note_elementwise(tensor for tensor, _ in holding if id(tensor) not in inside)
        elif name in follow.LOOKUPS and holding:
            held, origin = self._after_lookup(name, args, outputs[0], origin)
        elif origin > Origin.CONSTANT:
            if name in ("aten::clone", "aten::_to_copy") and (original := self.held(operands[0])):
                held = follow.elementwise([(operands[0], original)], outputs[0])
            self._note_use(func, name, operands)
        elif holding:
            held = self._after_transform(func, name, args, holding, outputs[0])
        for output in outputs:
            if origin > self.origin(output):
                self._origins.set(output, origin)
        if held is not None:
            self._held.set(outputs[0], held)

    def _after_contraction(
        self, name: str, args: Any, output: Tensor, found: list[Contraction], origin: Origin
    ) -> tuple[Held | None, Origin]:
        holding = [held for c in found for tensor in _operands(c) if (held := self.held(tensor))]
        if origin >= Origin.INPUT and holding:
            origin = Origin.HIDDEN
        elif len(holding) > 1 and origin is Origin.CONSTANT and any(held.passed for held in holding):
            origin = Origin.LEARNED
        held = None
        if name == "aten::mm" and origin >= Origin.INPUT and (bank := self.weights(args[1])):
            held = follow.mixed(args[1], bank, output)
        return held, origin

    def _after_lookup(
        self, name: str, args: Any, output: Tensor, origin: Origin
    ) -> tuple[Held | None, Origin]:
        """A look-up in a table is learned data; a look-up in a stack of matrices selects weights."""
        table = args[0]
        held = self.weights(table)
        chosen = None
        if held is not None:
            leading = name == "aten::index" and len(args[1]) == 1 and args[1][0] is not None
            leading = leading or (name == "aten::index_select" and args[1] % table.dim() == 0)
            chosen = follow.selected(table, held, output) if leading else None
            for source in held.sources if chosen is None else ():
                self.usage[source.parameter].indexed = True
        return chosen, Origin.HIDDEN if origin >= Origin.INPUT else Origin.LEARNED

    def _after_transform(
        self, func: Any, name: str, args: Any, holding: list[follow.Holding], output: Tensor
    ) -> Held | None:
        """Follow parameters through an operator that sees no data."""
        if name in ("aten::cat", "aten::stack"):
            parts = [(tensor, self.weights(tensor) if tensor.numel() else None) for tensor in args[0]]
            return follow.concatenated(parts, args[1] if len(args) > 1 else 0, output)
        if name == "aten::repeat":
            return follow.repeated(*holding[0], args[1], output)
        if name in follow.NORMALIZATIONS:
            self._note_elementwise(tensor for tensor, _ in holding if tensor is not args[0])
            return follow.elementwise([pair for pair in holding if pair[0] is args[0]], output)
        if follow.is_elementwise(func, name):
            return follow.elementwise(holding, output)
        self._note_use(func, name, [tensor for tensor, _ in holding])
        return None

    def _note_use(self, func: Any, name: str, tensors: Iterable[Tensor]) -> None:
        if follow.is_elementwise(func, name) or name in follow.REDUCTIONS:
            self._note_elementwise(tensors)
        else:
            self._note_operator(f"by the operator {name.removeprefix('aten::')}", tensors)

    def _note_elementwise(self, tensors: Iterable[Tensor]) -> None:
        for usage in self._usages(tensors):
            usage.elementwise = True

    def _note_operator(self, how: str, tensors: Iterable[Tensor]) -> None:
        for usage in self._usages(tensors):
            usage.operators.add(how)

    def _usages(self, tensors: Iterable[Tensor]) -> Iterator[Usage]:
        for tensor in tensors:
            held = self.weights(tensor)
            for source in held.sources if held else ():
                yield self.usage[source.parameter]

    def _save_overwritten(self, func: Any, args: Any) -> None:
        """Copy a parameter before the forward pass writes to it."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tree_iter(value):
                held = self.held(tensor) if has_storage(tensor) else None
                for source in held.sources if held else ():
                    parameter = self.parameters[source.parameter]
                    if parameter.untyped_storage() is tensor.untyped_storage():
                        self.overwritten.setdefault(source.parameter, parameter.detach().clone())


def _operands(contraction: Contraction) -> Iterator[Tensor]:
    yield from contraction.left if isinstance(contraction.left, tuple) else (contraction.left,)
    yield contraction.right


def _without_groups(decoded: Decoded, groups: int) -> Decoded:
    """Remove the outermost ``groups`` from the first dim: each output sums over one group only."""
    if groups == 1 or not decoded[0]:
        return decoded
    *inner, outer = decoded[0]
    if outer.size % groups:
        return decoded
    rest = [Factor(outer.dim, outer.size // groups, outer.step)] if outer.size > groups else []
    return [[*inner, *rest], *decoded[1:]]


def _is_broadcast(tensor: Tensor, decoded: Decoded, dim: int) -> bool:
    """Whether a dim of a tensor repeats the parameter's elements."""
    return tensor.shape[dim] > 1 and not any(factor.dim is not None for factor in decoded[dim])


def _is_scale(tensor: Tensor, decoded: Decoded, dims: tuple[int, ...]) -> bool:
    """Whether the parameter scales the weight: a magnitude, a gate, a factor for each input."""
    summed = [factor for dim in dims for factor in decoded[dim] if factor.dim is not None]
    if not summed:
        return any(_is_broadcast(tensor, decoded, dim) for dim in dims)
    others = [dim for dim in range(tensor.dim()) if dim not in dims]
    separates = any(factor.dim is not None for dim in others for factor in decoded[dim])
    return not separates and any(_is_broadcast(tensor, decoded, dim) for dim in others)


def _only_views(func: Any, operands: list[Tensor], outputs: list[Tensor]) -> bool:
    """Whether an operator only returns views of its operands, and writes nothing."""
    if func._schema.is_mutable:
        return False
    storages = {id(tensor.untyped_storage()) for tensor in operands}
    return all(id(tensor.untyped_storage()) in storages for tensor in outputs)


def _in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread; torch has no public function for it."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


@functools.cache
def _is_composite(func: Any) -> bool:
    """In inference mode composite operators arrive whole."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
        return False
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
