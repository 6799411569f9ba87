"""What the C code uses of torch's libraries, found in the running process: OpenMP, and looks at tensors.

Neither needs torch's headers or a build against one version of torch. The functions that look at a
tensor are exported for C (`aoti_…`) or for other parts of torch; a version that nobody has tried them with,
that lacks one of them, or in which one says something else than torch says in Python, is served by DLPack's
functions instead.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_OPENMP = (
    "GOMP_parallel",
    "__kmpc_fork_call",
    "__kmpc_push_num_threads",
    "__kmpc_global_thread_num",
    "omp_get_thread_num",
)
# The releases that the kernels' tests were run with (2.13.0, 2.14.1, 2.15.0). A newer one may give a function of the
# same name another form, and calling that could end the process before anything can be compared; so there they are
# used only if asked for.
_PROVEN = ((2, 13), (2, 15))
# In the order of csrc/tensors.c.
_TENSORS = (
    "_ZNK3c1010TensorImpl4gradEv",  # c10::TensorImpl::grad() const
    "_ZN2at6native6is_negERKNS_6TensorE",
    "_ZN2at4impl19tensor_has_dispatchERKNS_6TensorE",
    "_ZN2at6native12is_inferenceERKNS_6TensorE",
    "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_delete_tensor_object",
)


def openmp() -> tuple[str, list[int]]:
    """Find the OpenMP library that torch computes with, and its addresses for starting a parallel region."""
    for path in (None, *_openmp_libraries()):
        library = _loaded(path)
        if library is None:
            continue
        found = [_address(library, name) for name in _OPENMP]
        if found[0] or all(found[1:4]):
            return ("torch's OpenMP", found)
    return ("one core: torch's OpenMP was not found", [0] * len(_OPENMP))


def proven(version: str) -> bool:
    """Whether the functions that look at tensors are known to be safe to call in this release of torch."""
    release = tuple(int(part) for part in version.split(".")[:2])
    return _PROVEN[0] <= release <= _PROVEN[1]


def use_for_tensors(kernels: Any, dtypes: dict[torch.dtype, int]) -> bool:
    """Let the C code ask torch's functions about tensors, if they are there and say the truth."""
    addresses = tuple(_tensor_addresses())
    offset = _offset()
    if len(addresses) == len(_TENSORS) and offset is not None:
        with (
            torch.inference_mode(False),
            torch._C._DisableTorchDispatch(),
        ):  # whatever mode we are imported in
            samples = tuple(torch.ones(2, 3, dtype=dtype, device="cpu") for dtype in dtypes)
            kernels.torch_functions((offset, addresses, torch.nn.Parameter(samples[0]), samples))
            if _tell_the_truth(kernels, samples):
                return True
    kernels.torch_functions(None)
    return False


def _tensor_addresses() -> Iterator[int]:
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    shipped = os.listdir(folder) if os.path.isdir(folder) else []
    names = [name for name in shipped if name.startswith(("libtorch_cpu.", "libc10."))]
    libraries = [library for name in names if (library := _loaded(os.path.join(folder, name)))]
    for function in _TENSORS:
        address = next(filter(None, (_address(library, function) for library in libraries)), 0)
        if address:
            yield address


def _offset() -> int | None:
    """Where in a Python tensor the C++ one lies: its only member is the address that `_cdata` gives."""
    if sys.implementation.name != "cpython":
        return None  # elsewhere id() is not an address
    samples = (torch.ones(1, device="cpu"), torch.nn.Parameter(torch.ones(1, device="cpu")))
    for offset in range(object.__basicsize__, Tensor.__basicsize__, ctypes.sizeof(ctypes.c_void_p)):
        if all(ctypes.c_void_p.from_address(id(each) + offset).value == each._cdata for each in samples):
            return offset
    return None


def _tell_the_truth(kernels: Any, samples: tuple[Tensor, ...]) -> bool:
    look: Callable[[Tensor], Any] = kernels.look_at

    def expected(tensor: Tensor, code: int) -> tuple[Any, ...]:
        gradient = None if tensor.grad is None else tensor.grad.data_ptr()
        return (tensor.data_ptr(), code, tuple(tensor.shape), tensor.stride(), gradient)

    parameter = torch.nn.Parameter(samples[0][:, 1:])
    without = look(parameter) == expected(parameter, 0)
    parameter.grad = samples[0].new_ones(2, 2)
    changes = parameter._version
    return (
        without
        and look(parameter) == expected(parameter, 0)
        and all(look(each.t()) == expected(each.t(), code) for code, each in enumerate(samples))
        and look(torch._neg_view(samples[0])) is None
        and look(samples[0].to_sparse()) is None
        and look(samples[0].to(torch.int32)) is None
        and look(samples[0].to("meta")) is None
        and look(samples[0].as_subclass(_Dispatching)) is None
        and kernels.count_changes([parameter]) is True
        and parameter._version == changes + 1
    )


class _Dispatching(Tensor):
    """A tensor that is more than its memory."""

    @classmethod
    def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _loaded(path: str | None) -> ctypes.CDLL | None:
    """Return a library that is in the process already; it is not loaded if it is not."""
    try:
        return ctypes.CDLL(path, mode=ctypes.DEFAULT_MODE | getattr(os, "RTLD_NOLOAD", 0))
    except OSError:
        return None


def _address(library: ctypes.CDLL, name: str) -> int:
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _openmp_libraries() -> list[str]:
    """Return libraries already in the process whose name looks like OpenMP, then those shipped with torch."""
    found: list[str] = []
    if sys.platform == "linux":
        with open("/proc/self/maps") as maps:
            found = [line.split(maxsplit=5)[-1].strip() for line in maps if "omp" in line.rpartition("/")[2]]
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    shipped = os.listdir(folder) if os.path.isdir(folder) else []
    return [*dict.fromkeys(found), *(os.path.join(folder, name) for name in sorted(shipped) if "omp" in name)]
