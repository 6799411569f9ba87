"""Lightning: a callback that attaches GC when fitting starts, after `configure_optimizers` and sharding.

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
    Callback = require(
        "pytorch_lightning"
    ).Callback  # the package's older name; its Trainer wants its own class
else:
    Callback = require("lightning.pytorch", "lightning").Callback


class CentralizeCallback(Callback):  # type: ignore[misc]
    """Attach GC to every optimizer of the module; the options are those of :func:`gradcent.attach`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach; optimizers exist, and sharded modules are sharded."""
        if not trainer.optimizers:
            raise ValueError("CentralizeCallback: configure_optimizers returned no optimizer to attach to")
        options = with_example(pl_module, self.options, lambda: _batch(trainer, pl_module))
        attach_each(trainer.optimizers, pl_module, **options)


def _batch(trainer: Any, pl_module: Any) -> Any:
    """Return a batch of the training data. The loaders of the trainer are not set up yet, so the source is asked."""
    source = getattr(trainer, "datamodule", None) or pl_module
    try:
        loader = trainer.fit_loop._data_source.instance or source.train_dataloader()
    except Exception:  # a private attribute, or a loader that needs more than the module
        return None
    return batch_of(loader)
