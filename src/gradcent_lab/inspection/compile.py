"""Ahead-of-time compilation of the Triton kernels for a GPU that need not be present."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from gradcent import Layout
from gradcent.kernels import triton_launch
from gradcent.kernels.triton_tasks import Operand, Specialisation, plan_launches

from ..errors import UserError

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
RULES = {  # update rule, number of states
    "SGD": ("PLAIN", 0),
    "SGDM": ("MOMENTUM", 1),
    "Adam": ("ADAM", 2),
    "Adagrad": ("ADAGRAD", 1),
    "centralize": ("CENTRALIZE", 0),
}
POINTER_TYPES = {
    "pointers": "*i64",
    "shapes": "*i64",
    "tasks": "*i32",
    "rates": "*fp64",
    "grad_scale": "*fp32",
    "found_inf": "*fp32",
}


@dataclass(frozen=True)
class Case:
    """One kernel to inspect: an optimizer's step of a tensor of this shape."""

    name: str
    optimizer: str = "Adam"
    dtype: torch.dtype = torch.float32
    layout: Layout | None = None
    aligned: bool = True
    decay: str = "PROJECTED"
    update: bool = False

    @property
    def specialisation(self) -> Specialisation:
        """The specialisation that such a tensor takes."""
        numel = 1 << 20 if self.layout is None else self.layout.numel
        launches, _ = plan_launches([Operand(numel, self.dtype, self.layout, self.aligned)])
        return launches[0].specialisation

    @property
    def states(self) -> int:
        """How many state tensors the optimizer has."""
        return RULES[self.optimizer][1]


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: its assembly and the threads of a program."""

    target: str
    text: str  # PTX or AMDGCN
    machine_code: bytes
    num_warps: int
    shared: int


def compile_case(case: Case, target: str) -> Binary:
    """Compile the specialisation of a case for one of TARGETS."""
    try:
        import triton  # type: ignore[import-untyped]
        from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
        from triton.compiler import ASTSource  # type: ignore[import-untyped]
    except ImportError as error:
        raise UserError("inspecting kernels needs Triton: pip install triton") from error
    from gradcent.kernels import triton_kernels

    specialisation = case.specialisation
    kernel = getattr(triton_kernels, f"{specialisation.kernel}_kernel")
    constants: dict[str, Any] = {
        **triton_launch._constants(RULES[case.optimizer][0], case.decay, case.update),
        "SCALED": False,
        "DEVICE_RATES": False,
        **triton_launch.compile_constants(specialisation),
    }
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else POINTER_TYPES.get(name, "fp64") for name in names
    }
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    backend, architecture, warp_size = TARGETS[target]
    num_warps = specialisation.num_warps(warp_size)
    options = {"num_warps": num_warps, "enable_fp_fusion": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = triton.compile(source, target=GPUTarget(backend, architecture, warp_size), options=options)
    text = compiled.asm["ptx" if backend == "cuda" else "amdgcn"]
    code = compiled.asm["cubin" if backend == "cuda" else "hsaco"]
    return Binary(target, text, code, num_warps, compiled.metadata.shared)


def rows(length: int, count: int = 1024) -> Layout:
    """Return the layout of `count` rows."""
    return Layout(1, 1, count, length)


def columns(length: int, count: int = 1024, inner: int = 1) -> Layout:
    """Return the layout of `count` columns, or of runs of `inner` elements."""
    return Layout(1, length, count, inner)


def all_cases() -> list[Case]:
    """Return every kind of specialisation: shapes, dtypes, optimizers, alignment."""
    shapes: list[tuple[str, Layout | None]] = [
        *[(f"rows of {length:,}", rows(length)) for length in (64, 256, 1024, 2048, 4096, 16384)],
        ("columns", columns(1024)),
        ("runs of 16", columns(64, inner=16)),
        ("no layout", None),
    ]
    cases = []
    for name, layout in shapes:
        for optimizer in ("SGDM", "Adam"):
            cases.append(Case(name, optimizer, layout=layout))
    for name, layout in shapes[2:8:2] + shapes[6:7]:
        for dtype in (torch.bfloat16, torch.float64):
            cases.append(Case(name, "Adam", dtype, layout))
    for name, layout in (shapes[2], shapes[4], shapes[6]):
        cases.append(Case(f"{name}, unaligned", "Adam", layout=layout, aligned=False))
        cases.append(Case(f"{name}, at the update", "Adam", layout=layout, update=True))
        cases.append(Case(name, "Adagrad", layout=layout))
        cases.append(Case(name, "centralize", layout=layout, decay="NO_DECAY"))
    cases.append(Case("rows of 1,024", "Adam", torch.float16, shapes[2][1]))
    return list(dict.fromkeys(cases))
