"""MMEngine: a hook that attaches GC when training starts, and an optimizer wrapper constructor for its configs.

    custom_imports = dict(imports=["gradcent.integrations.mmengine"])
    custom_hooks = [dict(type="CentralizeHook")]

or, in the configs of MMDetection, MMSegmentation and other packages that set a constructor,

    optim_wrapper = dict(constructor="CentralizedConstructor", optimizer=dict(type="SGD", lr=0.02, …), clip_grad=…)

The hook sees the training data, so it traces the first batch where class rules do not explain the model. The
constructor sees the model only. The options of :func:`gradcent.attach` are the hook's, or go into
`paramwise_cfg=dict(centralize=dict(at="update"))` of the constructor. MMEngine clips before it steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import attach_and_log, attach_each, require, unwrapped
from ._first_batch import batch_of, with_example

if TYPE_CHECKING:
    DefaultConstructor: Any
    Hook: Any
    registry: Any
else:
    DefaultConstructor = require("mmengine.optim", "mmengine").DefaultOptimWrapperConstructor
    Hook = require("mmengine.hooks", "mmengine").Hook
    registry = require("mmengine.registry", "mmengine")


@registry.HOOKS.register_module()
class CentralizeHook(Hook):  # type: ignore[misc]
    """Attach GC to every optimizer of the runner when training starts."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def before_train(self, runner: Any) -> None:
        """Attach; the runner has built the optimizer wrapper and the data loader by now."""
        model = unwrapped(runner.model)
        wrappers = getattr(runner.optim_wrapper, "optim_wrappers", {"": runner.optim_wrapper})
        options = with_example(
            model, self.options, lambda: batch_of(runner.train_dataloader), _training_forward
        )
        attach_each([wrapper.optimizer for wrapper in wrappers.values()], model, **options)


def _training_forward(model: Any, batch: Any) -> Any:
    """Run the forward pass of a training step: the model's data preprocessor, then the losses."""
    data = model.data_preprocessor(batch, True)
    return model(**data, mode="loss") if isinstance(data, dict) else model(*data, mode="loss")


@registry.OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class CentralizedConstructor(DefaultConstructor):  # type: ignore[misc]
    """MMEngine's default constructor; GC is attached to the optimizer that it builds."""

    def __init__(self, optim_wrapper_cfg: Any, paramwise_cfg: Any = None) -> None:
        paramwise = dict(paramwise_cfg or {})
        self.options: dict[str, Any] = dict(paramwise.pop("centralize", {}))
        super().__init__(optim_wrapper_cfg, paramwise or None)

    def __call__(self, model: Any) -> Any:
        """Build the wrapper as the config says and attach."""
        wrapper = super().__call__(model)
        attach_and_log(wrapper.optimizer, unwrapped(model), **self.options)
        return wrapper
