"""The hash of a model's weights: equal hashes mean equal parameters and buffers, bit for bit."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_hash(model: nn.Module) -> str:
    """Return the sha256 of all parameters and buffers, names and shapes included."""
    total = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
