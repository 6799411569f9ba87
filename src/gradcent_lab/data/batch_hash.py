"""Hash of a batch, to check that both arms of a pair train on the same data in the same order.

At most a quarter of a million evenly spaced elements of every tensor are hashed, so that the cost stays below a
millisecond whatever the size of the batch.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

MOST_ELEMENTS = 1 << 18
BATCHES_PER_EPOCH = 2  # the first batches of every epoch are hashed


def hash_batch(*parts: Any) -> str:
    """Return 16 hexadecimal digits for inputs and targets: tensors, numbers and text, nested in any way.

    >>> one = hash_batch(torch.arange(4), {"label": [1, 2]})
    >>> one == hash_batch(torch.arange(4), {"label": [1, 2]}), one == hash_batch(torch.arange(4), {"label": [2, 1]})
    (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        _update(digest, part)
    return digest.hexdigest()[:16]


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        flat = value.detach().reshape(-1)
        stride = max(1, -(-flat.numel() // MOST_ELEMENTS))
        sample = flat[::stride].cpu().contiguous()
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            digest.update(str(key).encode())
            _update(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)}".encode())
        for item in value:
            _update(digest, item)
    elif isinstance(value, str | bytes | int | float | None):
        digest.update(repr(value).encode())
    else:  # its text may hold an address, which differs from run to run
        digest.update(type(value).__name__.encode())
