"""Lightning: a callback that attaches GC when training starts, after `configure_optimizers` and sharding.

    trainer = Trainer(callbacks=[gradcent.integrations.lightning.CentralizeCallback()])

Lightning steps with a closure that runs forward, backward and clipping; GC comes after it, so the
order is clip, then centralize. Manual optimization works the same way, without a closure.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import attach_each, require
from ._first_batch import batch_of, with_example

if TYPE_CHECKING:
    Callback: Any
elif "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    # The package's older name: its Trainer accepts callbacks of its own class only.
    Callback = require("pytorch_lightning").Callback
else:
    Callback = require("lightning.pytorch", "lightning").Callback


class CentralizeCallback(Callback):  # type: ignore[misc]
    """Attach GC to every optimizer of the module; the options are those of :func:`gradcent.attach`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach; optimizers and data loaders exist, and sharded modules are sharded."""
        if not trainer.optimizers:
            raise ValueError("CentralizeCallback: configure_optimizers returned no optimizer to attach to")
        options = with_example(pl_module, self.options, lambda: batch_of(trainer.train_dataloader))
        attach_each(trainer.optimizers, pl_module, **options)
