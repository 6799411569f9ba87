"""Accelerate: attach with the first batch of the training data as the example, before or after `prepare`.

    gradcent.integrations.accelerate.attach(optimizer, model, loader)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

:func:`gradcent.attach` works as well; this function spares the user the example where class rules do not explain the
model. Models that `prepare` has sharded (FSDP2) cannot be traced: call it before.
"""

from __future__ import annotations

from typing import Any

from . import attach_and_log, unwrapped
from ._first_batch import batch_of, with_example


def attach(optimizer: Any, model: Any, loader: Any, **options: Any) -> Any:
    """Attach GC to an optimizer, or to the one inside Accelerate's wrapper, and return it; options as for `attach`."""
    plain = unwrapped(model)
    attach_and_log(optimizer, plain, **with_example(plain, options, lambda: batch_of(loader)))
    return optimizer
