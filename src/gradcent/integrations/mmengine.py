"""MMEngine: an optimizer wrapper constructor for the configs of MMDetection, MMSegmentation and the rest.

    custom_imports = dict(imports=["gradcent.integrations.mmengine"])
    optim_wrapper = dict(constructor="CentralizedConstructor", optimizer=dict(type="SGD", lr=0.02, …), clip_grad=…)

Options of :func:`gradcent.attach` go into `paramwise_cfg=dict(centralize=dict(at="update"))`; the rest
of `paramwise_cfg` is obeyed as by the default constructor. MMEngine clips before it steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import attach_and_log, require, unwrapped

if TYPE_CHECKING:
    DefaultConstructor: Any
    registry: Any
else:
    DefaultConstructor = require("mmengine.optim", "mmengine").DefaultOptimWrapperConstructor
    registry = require("mmengine.registry", "mmengine").OPTIM_WRAPPER_CONSTRUCTORS


@registry.register_module()
class CentralizedConstructor(DefaultConstructor):  # type: ignore[misc]
    """The default constructor, and GC attached to what it made."""

    def __init__(self, optim_wrapper_cfg: Any, paramwise_cfg: Any = None) -> None:
        paramwise = dict(paramwise_cfg or {})
        self.options: dict[str, Any] = dict(paramwise.pop("centralize", {}))
        super().__init__(optim_wrapper_cfg, paramwise or None)

    def __call__(self, model: Any) -> Any:
        """Build the wrapper as the config says and attach."""
        wrapper = super().__call__(model)
        attach_and_log(wrapper.optimizer, unwrapped(model), **self.options)
        return wrapper
