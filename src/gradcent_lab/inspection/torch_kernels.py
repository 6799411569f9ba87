"""torch's own fused SGD and Adam kernels, taken from the installed CUDA wheel."""

from __future__ import annotations

import os
import re
from functools import cache

import torch

from .disassembly import Figures, cuobjdump, sass_figures

BLOCK_WARPS = 16  # multi_tensor_apply launches blocks of 512 threads
TYPES = {
    torch.float32: "f",
    torch.float64: "d",
    torch.bfloat16: "N3c108BFloat16E",
    torch.float16: "N3c104HalfE",
}
# depth of the tensor lists: parameter, gradient and states
KERNELS = {"SGDM": "FusedSgdMathFunctorI{}Li3", "Adam": "FusedAdamMathFunctorI{}Li4"}


def library() -> str | None:
    """Return torch's CUDA library, or None for a build without CUDA."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    return path if os.path.exists(path) else None


@cache
def _usage(target: str) -> str:
    return cuobjdump("-res-usage", "-arch", target, library() or "")


@cache
def torch_figures(optimizer: str, dtype: torch.dtype, target: str) -> Figures | None:
    """Return the figures of torch's fused kernel; None where the wheel has none for this target."""
    if library() is None or optimizer not in KERNELS:
        return None
    kernel_name = KERNELS[optimizer].format(TYPES[dtype])
    match = re.search(rf"Function (\S*{kernel_name}\S*?):\n(.*)", _usage(target))
    if match is None:
        return None
    name, usage = match.groups()
    sass = cuobjdump("-sass", "-arch", target, "-fun", name, library() or "")
    figures = sass_figures(usage, sass, BLOCK_WARPS)
    # The kernel has vectorised loops for aligned tensors, with and without a gradient scale, and a scalar loop.
    # The one to compare with accesses memory in the widest units and writes no gradient back.
    widest = max(max(loop.loads, default=0) for loop in figures.hot)
    vectorised = [loop for loop in figures.hot if widest in loop.loads and loop.stores]
    figures.hot = sorted(
        vectorised or figures.hot, key=lambda loop: (sum(loop.stores.values()), loop.instructions)
    )[:1]
    return figures
