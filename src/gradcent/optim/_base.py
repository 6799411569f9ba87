"""What all drop-in optimizers share: GC's options, copies that keep GC, groups planned as they come."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from ..attachment import SWITCH, Attachment, Options
from ..step_hooks import StepHooks
from ._collect import collect
from ._torch_step import announce

if TYPE_CHECKING:
    from torch.optim import Optimizer as _Below
else:
    _Below = object  # whatever optimizer class stands behind the mixin


class Centralized(_Below):
    """Mixed into an optimizer class, before it: gives it GC without touching its checkpoints."""

    _gradcent: Attachment | None = None
    _gradcent_hooks: StepHooks | None = None
    _gradcent_body: Any = None

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
        kernel: str = "auto",
        nonfinite: Any = "propagate",
        centralize: bool = True,
        **kwargs: Any,
    ) -> None:
        options = Options(layers, at, decay, overrides, kernel, nonfinite)
        self._gradcent_refuse(options)
        super().__init__(params, *args, **kwargs)
        if centralize:
            self._join(Attachment(self, model, plan, options))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show torch's signature with GC's options behind it."""
        super().__init_subclass__(**kwargs)
        theirs = next((base for base in cls.__mro__ if base.__module__.startswith("torch.")), None)
        if theirs is not None and "__init__" not in cls.__dict__:
            cls.__signature__ = _joint_signature(theirs)  # type: ignore[attr-defined]

    def _join(self, attachment: Attachment) -> None:
        self._gradcent = attachment
        rebuild = getattr(type(self).step, "rebuild", None)
        self._gradcent_body = None if rebuild is None else rebuild(attachment.identity)
        options = attachment.options
        hooks = self._gradcent_needs_hooks(options)
        if any(hooks.values()) or options.nonfinite != "propagate":
            self._gradcent_hooks = StepHooks(attachment, **hooks)
            self._gradcent_hooks.install(self)

    def _gradcent_needs_hooks(self, options: Options) -> dict[str, bool]:
        return {"gradients": False, "updates": False}

    @classmethod
    def _gradcent_refuse(cls, options: Options) -> None:
        """Refuse a kernel that has no path for what is asked of it."""
        if (
            options.at == "update"
            and options.kernel in ("native", "triton")
            and not cls._gradcent_whole_step()
        ):
            raise ValueError(
                f"kernel={options.kernel!r} cannot project the update of {cls.__name__}: it does that only in whole "
                "steps of SGD, SGDW, Adam, AdamW and Adagrad. Use kernel='auto'"
            )

    @classmethod
    def _gradcent_whole_step(cls) -> bool:
        """Whether our kernels take this optimizer's whole step."""
        return bool(getattr(cls.step, "whole", False))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
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
        # load_state_dict comes here too, with the plain optimizer's keys: GC then stays as it is.
        state = dict(state)
        mine = state.pop("_gradcent", None)
        if self._gradcent is not None:
            self._gradcent.pass_over_switches(state.get("param_groups", []))
        super().__setstate__(state)
        if mine is not None:
            self._join(mine)


class Seamed(Centralized):
    """For torch's dense optimizers, whose rebuilt `step` takes the plan from what is announced here."""

    _gradcent_inside = False

    def _collect(self, group: dict[str, Any], params: Any, *rest: Any, **kwargs: Any) -> Any:
        if self._gradcent is not None and not self._gradcent_inside and not torch.compiler.is_compiling():
            raise RuntimeError(
                f"this is {type(self).__name__}.step as it was before gradcent was attached: somebody had taken hold "
                "of optimizer.step by then, and would step without GC. Attach first (with Accelerate and a "
                "GradScaler: before accelerator.prepare)"
            )
        result = None if kwargs else collect(self, group, (params, *rest))
        if result is None:
            result = super()._init_group(group, params, *rest, **kwargs)  # type: ignore[misc]
        attachment = self._gradcent
        if attachment is not None:
            attachment.heed_switch(self, group)
        coupled = attachment is not None and attachment.projects_decay(self, group)
        announce(attachment, coupled, params)
        return result

    _init_group: Any = _collect  # torch's classes each have a signature of their own for it
    _gradcent_init_group = _init_group


class Hooked(Centralized):
    """For optimizers whose inside is not known: step hooks centralize `p.grad` in place."""

    def _gradcent_needs_hooks(self, options: Options) -> dict[str, bool]:
        return {"gradients": options.at == "gradient", "updates": options.at == "update"}

    def _patch_step_function(self) -> None:
        """Run the step hooks in the plain class's step and in every parent's step that it may call."""
        super()._patch_step_function()
        for base in type(self).__mro__:
            step = base.__dict__.get("step")
            if step is None or issubclass(base, Centralized) or getattr(step, "hooked", False):
                continue
            if base is not torch.optim.Optimizer:  # its step only raises NotImplementedError
                base.step = self.profile_hook_step(step)  # type: ignore[attr-defined]
                base.step.hooked = True  # type: ignore[attr-defined]

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Step as the class below does, after forgetting what an interrupted step may have left."""
        hooks, attachment = self._gradcent_hooks, self._gradcent
        if attachment is not None:
            for group in self.param_groups:
                attachment.heed_switch(self, group)
        if hooks is None:
            return super().step(*args, **kwargs)
        hooks.begin()
        try:
            return super().step(*args, **kwargs)
        finally:
            hooks.show()  # a skipped step hides gradients; they are the user's, also when the step fails

    step.hooked = True  # type: ignore[attr-defined]  # the parent's step runs the hooks; once is enough


def _joint_signature(theirs: type) -> inspect.Signature:
    ours = inspect.signature(Centralized.__init__).parameters
    options = [each for each in ours.values() if each.kind is inspect.Parameter.KEYWORD_ONLY]
    own = [each for each in inspect.signature(theirs).parameters.values()]
    return inspect.Signature([*own, *options])
