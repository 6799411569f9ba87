"""Watch one forward pass: which dims of each parameter are contracted, and with what.

Every tensor of the pass is one of three things. It *holds parameters* if it is a view, a copy or an elementwise
function of parameters and constants. It is *data* if it depends on the model's inputs. Anything else is constant:
buffers, position indices, masks. A contraction of a tensor that holds a parameter with data shows the parameter's
weight vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import contractions, follow
from .contractions import Contraction, Level
from .known import KnownTensors, has_storage, tensors_of
from .provenance import contracted, is_scale, without_groups
from .usage import Evidence, Held, Origin, Usage

_AS_DATA = "as the data of a contraction"


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode that fills ``usage``, which is parallel to ``parameters``."""

    def __init__(self, parameters: Iterable[Tensor], inputs: Iterable[Tensor], *, levels: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = list(parameters)
        self.usage = [Usage() for _ in self.parameters]
        self.levels = levels
        self.overwritten: dict[int, Tensor] = {}  # values of parameters that the forward pass writes to
        self.known = KnownTensors(self.parameters, inputs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _in_backward():  # a backward pass inside the forward pass
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        operands = list(tensors_of((args, kwargs)))
        if func._schema.is_mutable:
            self._save_overwritten(func, args)
        contracted_here = contractions.of(func, args, kwargs)
        for contraction in contracted_here:
            self._contract(contraction)
        result = func(*args, **kwargs)
        outputs = list(tensors_of(result))
        if outputs and not _only_views(func, operands, outputs):
            self._follow(func, args, kwargs, operands, outputs, contracted_here)
        return result

    def _contract(self, contraction: Contraction) -> None:
        left = contraction.left if isinstance(contraction.left, tuple) else (contraction.left,)
        right = contraction.right
        if not all(map(has_storage, (*left, right))):
            return
        left_origin = max(map(self.known.origin, left))
        held_right = self._usable(right, left_origin, contraction)
        held_left = None
        if not contraction.fixed:
            held_left = self._usable(left[0], self.known.origin(right), contraction)
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
                held_left, left[0], contraction.left_dims, contraction, self.known.origin(right), (right,)
            )
        else:
            self._note_operator(_AS_DATA, (*left, right))

    def _usable(self, tensor: Tensor, other: Origin, contraction: Contraction) -> Held | None:
        """Return what a tensor holds if it can be the weight of a contraction with an operand of that origin."""
        held = self.known.held(tensor)
        if held is None:
            return None
        if held.mixed:
            return held if contraction.kind == "conv" and tensor is contraction.right else None
        if held.selected:
            return held if other >= Origin.INPUT else None
        return held if self.known.origin(tensor) is Origin.CONSTANT else None

    def _note_weight(
        self,
        held: Held,
        weight: Tensor,
        dims: tuple[int, ...],
        contraction: Contraction,
        origin: Origin,
        data: tuple[Tensor, ...],
    ) -> None:
        if origin is Origin.CONSTANT and any(self.known.weights(tensor) for tensor in data):
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
                factors = contracted(without_groups(decoded, contraction.groups), dims)
                if is_scale(tensor, decoded, dims):
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
        contracted_here: list[Contraction],
    ) -> None:
        """Work out what the outputs are."""
        name = contractions.operator_name(func)
        origin = max(map(self.known.origin, operands), default=Origin.CONSTANT)
        held: Held | None = None
        holding = [
            (tensor, weights) for tensor in operands if (weights := self.known.weights(tensor)) is not None
        ]
        if contracted_here:
            held, origin = self._after_contraction(name, args, outputs[0], contracted_here, origin)
            inside = {id(tensor) for contraction in contracted_here for tensor in _operands(contraction)}
            self._note_elementwise(tensor for tensor, _ in holding if id(tensor) not in inside)
        elif name in follow.LOOKUPS and holding:
            held, origin = self._after_lookup(name, args, outputs[0], origin)
        elif origin > Origin.CONSTANT:
            if name in ("aten::clone", "aten::_to_copy") and (original := self.known.held(operands[0])):
                held = follow.elementwise([(operands[0], original)], outputs[0])
            self._note_use(func, name, operands)
        elif holding:
            held = self._after_transform(func, name, args, holding, outputs[0])
        for output in outputs:
            self.known.set_origin(output, origin)
        if held is not None:
            self.known.set_held(outputs[0], held)

    def _after_contraction(
        self, name: str, args: Any, output: Tensor, contracted_here: list[Contraction], origin: Origin
    ) -> tuple[Held | None, Origin]:
        holding = [
            held
            for contraction in contracted_here
            for tensor in _operands(contraction)
            if (held := self.known.held(tensor))
        ]
        if origin >= Origin.INPUT and holding:
            origin = Origin.HIDDEN
        elif len(holding) > 1 and origin is Origin.CONSTANT and any(held.passed for held in holding):
            origin = Origin.LEARNED
        held = None
        if name == "aten::mm" and origin >= Origin.INPUT and (bank := self.known.weights(args[1])):
            held = follow.mixed(args[1], bank, output)
        return held, origin

    def _after_lookup(
        self, name: str, args: Any, output: Tensor, origin: Origin
    ) -> tuple[Held | None, Origin]:
        """A look-up in a table is learned data; a look-up in a stack of matrices selects weights."""
        table = args[0]
        held = self.known.weights(table)
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
            parts = [(tensor, self.known.weights(tensor) if tensor.numel() else None) for tensor in args[0]]
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
            held = self.known.weights(tensor)
            for source in held.sources if held else ():
                yield self.usage[source.parameter]

    def _save_overwritten(self, func: Any, args: Any) -> None:
        """Copy a parameter before the forward pass writes to it."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tensors_of(value):
                held = self.known.held(tensor)
                for source in held.sources if held else ():
                    parameter = self.parameters[source.parameter]
                    if parameter.untyped_storage() is tensor.untyped_storage():
                        self.overwritten.setdefault(source.parameter, parameter.detach().clone())


def _operands(contraction: Contraction) -> Iterator[Tensor]:
    yield from contraction.left if isinstance(contraction.left, tuple) else (contraction.left,)
    yield contraction.right


def _only_views(func: Any, operands: list[Tensor], outputs: list[Tensor]) -> bool:
    """Whether an operator only returns views of its operands, and writes nothing."""
    if func._schema.is_mutable:
        return False
    storages = {id(tensor.untyped_storage()) for tensor in operands}
    return all(id(tensor.untyped_storage()) in storages for tensor in outputs)


def _in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread.

    torch has no public function for this. Without the private one, operators of such a pass count as uses.
    """
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


# `OpOverload._schema` and `tags` have no public equivalent; torch's documentation of dispatch modes uses both.
@functools.cache
def _is_composite(func: Any) -> bool:
    """In inference mode composite operators arrive whole."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
        return False
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
