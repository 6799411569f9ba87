"""The native fused steps with keyword arguments, for tests."""

from typing import Any

from gradcent.kernels import native
from gradcent.kernels.fused_steps import ADAGRAD, ADAM, SGD, StepArgs


def sgd(params: Any, grads: Any, buffers: Any, layouts: Any, **args: Any) -> None:
    native.step_lists(SGD, params, grads, [buffers], layouts, StepArgs(**args))


def adam(params: Any, grads: Any, m: Any, v: Any, steps: Any, layouts: Any, **args: Any) -> None:
    native.step_lists(ADAM, params, grads, [m, v, steps], layouts, StepArgs(**args))


def adagrad(params: Any, grads: Any, sums: Any, steps: Any, layouts: Any, **args: Any) -> None:
    native.step_lists(ADAGRAD, params, grads, [sums, steps], layouts, StepArgs(**args))
