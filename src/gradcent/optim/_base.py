"""What all drop-in optimizers share: GC's options, copies that keep GC, new param groups that are planned."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ..attachment import SWITCH, Attachment
from ..options import Options
from ..plan.planner import MIN_LENGTH
from ..step_hooks import StepHooks

if TYPE_CHECKING:
    from torch.optim import Optimizer as _OptimizerBase
else:
    _OptimizerBase = object  # a mixin: the optimizer class follows it in the MRO


class Centralized(_OptimizerBase):
    """Mixed into an optimizer class, before it: adds GC without changing its checkpoints."""

    _gradcent: Attachment | None = None
    _gradcent_hooks: StepHooks | None = None
    _gradcent_has_fused_step = False  # whether the kernels have a fused step for this class

    def __init__(
        self,
        params: Any,
        *args: Any,
        model: Any = None,
        plan: Any = None,
        layers: Any = "all",
        at: Any = "gradient",
        decay: Any = "auto",
        overrides: Any = None,
        min_length: int = MIN_LENGTH,
        kernel: str = "auto",
        nonfinite: Any = "propagate",
        centralize: bool = True,
        example: Any = None,
        example_forward: Any = None,
        **kwargs: Any,
    ) -> None:
        options = Options(layers, at, decay, overrides, kernel, nonfinite, min_length)
        self._check_options(options)
        super().__init__(params, *args, **kwargs)
        if centralize:
            self._set_attachment(
                Attachment(self, model, plan, options, example=example, example_forward=example_forward)
            )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show torch's signature followed by GC's options."""
        super().__init_subclass__(**kwargs)
        torch_class = next((base for base in cls.__mro__ if base.__module__.startswith("torch.")), None)
        if torch_class is not None and "__init__" not in cls.__dict__:
            cls.__signature__ = _joint_signature(torch_class)  # type: ignore[attr-defined]

    def _set_attachment(self, attachment: Attachment) -> None:
        self._gradcent = attachment
        options = attachment.options
        hooks = self._required_hooks(options)
        if any(hooks.values()) or options.nonfinite != "propagate":
            self._gradcent_hooks = StepHooks(attachment, **hooks)
            self._gradcent_hooks.install(self)

    def _required_hooks(self, options: Options) -> dict[str, bool]:
        return {"gradients": False, "updates": False}

    @classmethod
    def _check_options(cls, options: Options) -> None:
        """Refuse a kernel that cannot do what the options request."""
        unfused = not cls._gradcent_has_fused_step
        if options.at == "update" and options.kernel in ("native", "triton") and unfused:
            raise ValueError(
                f"kernel={options.kernel!r} cannot project the update of {cls.__name__}: it does that only in fused "
                "steps of SGD, SGDW, Adam, AdamW and Adagrad. Use kernel='auto'"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a param group and plan its parameters."""
        super().add_param_group(param_group)
        if self._gradcent is not None:
            try:
                self._gradcent.add_group(self, self.param_groups[-1])
                self.param_groups[-1].pop(SWITCH, None)
            except Exception:
                self.param_groups.pop()
                raise

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_gradcent": self._gradcent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # load_state_dict calls this too, with the plain optimizer's keys: the attachment then stays as it is.
        state = dict(state)
        attachment = state.pop("_gradcent", None)
        if self._gradcent is not None:
            self._gradcent.ignore_checkpoint_switches(state.get("param_groups", []))
        super().__setstate__(state)
        if attachment is not None:
            self._set_attachment(attachment)

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if self._gradcent is None else f"{text}\n{self._gradcent.status_line()}"


def _joint_signature(torch_class: type) -> inspect.Signature:
    options = inspect.signature(Centralized.__init__).parameters.values()
    keywords = [option for option in options if option.kind is inspect.Parameter.KEYWORD_ONLY]
    return inspect.Signature([*inspect.signature(torch_class).parameters.values(), *keywords])
