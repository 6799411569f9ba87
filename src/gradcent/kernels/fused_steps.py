"""The optimizers that have a fused step, as data: which kernel, which states, which hyperparameters.

A fused step computes the mean of each weight vector, weight decay, moments and the update in one pass over
memory. The native kernels (native.py) and the Triton kernels (triton.py) both take a `FusedRule` and a `StepArgs`.
The state tensors are torch's own, so training can change from one implementation to another at any step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

At = Literal["gradient", "update"]


@dataclass(frozen=True, slots=True)
class FusedRule:
    """One optimizer's fused step."""

    name: str  # the optimizer
    kernel: Literal["sgd", "adam", "adagrad"]
    hyperparameters: tuple[str, ...]  # fields of StepArgs that this kernel reads besides the common ones
    state_keys: tuple[str, ...]  # torch's keys of the states; a step counter comes last
    state_lists: tuple[
        int, ...
    ]  # the same states' positions among the lists that torch's `_init_group` fills
    decoupled: bool = False

    def keys(self, args: StepArgs) -> tuple[str, ...]:
        """Return the keys of the states this step reads: SGD without momentum has none."""
        return () if self.kernel == "sgd" and args.momentum == 0 else self.state_keys


@dataclass(slots=True)
class StepArgs:
    """The arguments of one fused step, besides the tensors and their layouts."""

    lr: float | Tensor
    weight_decay: float = 0.0
    decoupled: bool = False  # w ← (1 − lr·λ)·w instead of g + λw
    projected: bool = True  # with coupled decay: P(g + λw) instead of P(g) + λw
    maximize: bool = False
    at: At = "gradient"
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    beta1: float | Tensor = 0.0
    beta2: float | Tensor = 0.0
    eps: float = 0.0
    lr_decay: float = 0.0

    @classmethod
    def of_group(
        cls,
        rule: FusedRule,
        group: Mapping[str, Any],
        *,
        at: At,
        projected: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> StepArgs:
        """Read the hyperparameters of a param group, or of the keyword arguments of torch's functional form."""
        values = dict(group)
        if "betas" in values:
            values["beta1"], values["beta2"] = values["betas"]
        return cls(
            weight_decay=values["weight_decay"],
            decoupled=rule.decoupled or bool(values.get("decoupled_weight_decay", False)),
            projected=projected,
            maximize=bool(values["maximize"]),
            at=at,
            grad_scale=grad_scale,
            found_inf=found_inf,
            **{name: values[name] for name in rule.hyperparameters},
        )


def torch_impl_requested(group: Mapping[str, Any], *, cuda: bool = False) -> bool:
    """Whether the user requested one of torch's implementations, or an option that the fused steps do not have.

    The Triton kernels read step counters and lr on the device, so they support `capturable`.
    """
    return (
        group.get("foreach") is not None
        or group.get("fused") is False
        or bool(group.get("differentiable"))
        or (bool(group.get("capturable")) and not cuda)
        or bool(group.get("amsgrad"))
    )


_SGD = ("lr", "momentum", "dampening", "nesterov")
_ADAM = ("lr", "beta1", "beta2", "eps")
_ADAM_STATES = ("exp_avg", "exp_avg_sq", "step")

SGD = FusedRule("SGD", "sgd", _SGD, ("momentum_buffer",), (0,))
SGDW = FusedRule("SGDW", "sgd", _SGD, ("momentum_buffer",), (0,), decoupled=True)
# torch's third list is amsgrad's maximum, which the fused steps do not have.
ADAM = FusedRule("Adam", "adam", _ADAM, _ADAM_STATES, (0, 1, 3))
ADAMW = FusedRule("AdamW", "adam", _ADAM, _ADAM_STATES, (0, 1, 3), decoupled=True)
ADAGRAD = FusedRule("Adagrad", "adagrad", ("lr", "lr_decay", "eps"), ("sum", "step"), (0, 1))
