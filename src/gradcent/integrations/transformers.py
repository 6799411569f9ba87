"""Hugging Face Trainer: a callback that attaches GC, or the optimizer class that Trainer chooses, with GC.

    trainer = Trainer(model, args, callbacks=[gradcent.integrations.transformers.CentralizeCallback()], …)

or, if the optimizer should be created with GC,

    from gradcent.integrations.transformers import optimizer_cls_and_kwargs
    trainer = Trainer(model, args, optimizer_cls_and_kwargs=optimizer_cls_and_kwargs(model, args), …)

GPT-2's `Conv1D` weights are stored as (in, out), which the plan accounts for. Trainer clips before it steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..optim._class_exchange import centralized_class
from ..plan import Plan
from . import announce, attach_and_log, require
from ._first_batch import EXAMPLE, PLANNING, batch_of, with_example

if TYPE_CHECKING:
    TrainerCallback: Any
else:
    TrainerCallback = require("transformers").TrainerCallback


class CentralizeCallback(TrainerCallback):  # type: ignore[misc]
    """Attach GC when training begins; the options are those of :func:`gradcent.attach`.

    >>> callback = CentralizeCallback(at="update")  # Trainer(model, args, callbacks=[callback], …)
    >>> callback.options
    {'at': 'update'}
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach; Trainer has created and prepared the optimizer by now."""
        optimizer, model = kwargs.get("optimizer"), kwargs.get("model")
        if optimizer is None:
            raise ValueError(
                "CentralizeCallback: Trainer has no optimizer here, as with DeepSpeed; "
                "call gradcent.attach_to_gradients(model) before you create the Trainer"
            )
        loader = kwargs.get("train_dataloader")
        attach_and_log(optimizer, model, **with_example(model, self.options, lambda: batch_of(loader)))


def optimizer_cls_and_kwargs(model: Any, args: Any, **options: Any) -> tuple[type, dict[str, Any]]:
    """Return what Trainer would choose for ``args.optim``, with GC, for its argument of the same name.

    >>> from transformers import TrainingArguments
    >>> args = TrainingArguments(output_dir="out", optim="adamw_torch", use_cpu=True)
    >>> optimizer_class, kwargs = optimizer_cls_and_kwargs(nn.Linear(3, 2), args)
    >>> optimizer_class.__name__
    'AdamW'
    """
    trainer: Any = require("transformers").Trainer
    plain, kwargs = trainer.get_optimizer_cls_and_kwargs(args, model)
    if not (isinstance(plain, type) and issubclass(plain, torch.optim.Optimizer)):
        raise TypeError(
            f"optim={args.optim!r} is created by {plain!r}, not by an optimizer class: use CentralizeCallback"
        )
    planned = {name: options.pop(name) for name in (*PLANNING, *EXAMPLE) if name in options}
    plan = Plan.of(model, **planned)
    announce(plan, options.get("at", "gradient"))
    # Trainer replaces a keyword "model" by the list of parameters, so the plan is passed instead.
    centralized: type = centralized_class(plain)  # type: ignore[arg-type]
    return centralized, {**kwargs, "plan": plan, **options}
