"""Figures of a compiled kernel, counted in its machine code.

"Hot" instructions are those executed for every element: the whole program for a kernel without loops, the bodies of the
loops that access global memory otherwise. Code that a branch skips in the usual case (slow paths of a
division) lies behind the last EXIT and is not counted.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from ..errors import UserError

REGISTERS_PER_SM, WARPS_PER_SM, BLOCKS_PER_SM = 65536, 64, 32
SASS_LINE = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;")
NVIDIA_ACCESS = re.compile(r"\b(?:LDG|STG)(?:\.\w+)*")
AMD_ACCESS = re.compile(r"\b(?:global|buffer|flat)_(load|store)_(\w+)")
AMD_BYTES = {
    "dwordx4": 16,
    "dwordx3": 12,
    "dwordx2": 8,
    "dword": 4,
    "b128": 16,
    "b96": 12,
    "b64": 8,
    "b32": 4,
}


@dataclass
class Loop:
    """A straight piece of code: a loop body, or the whole program. Bytes are per thread and iteration."""

    instructions: int
    loads: Counter[int] = field(
        default_factory=Counter
    )  # width in bytes -> count, the elements' own accesses
    stores: Counter[int] = field(default_factory=Counter)
    divisions: int = 0

    @property
    def load_bytes(self) -> int:
        """Bytes that one thread loads in one iteration."""
        return sum(width * count for width, count in self.loads.items())


@dataclass
class Figures:
    """What the machine code says about one kernel."""

    registers: int
    spills: int  # bytes of stack, or spilled registers on AMD
    shared: int
    num_warps: int
    resident_warps: int
    hot: list[Loop]

    @property
    def divisions(self) -> int:
        """Integer divisions in the hot code."""
        return sum(loop.divisions for loop in self.hot)

    @property
    def widths(self) -> Counter[int]:
        """Hot accesses by width in bytes."""
        total: Counter[int] = Counter()
        for loop in self.hot:
            total += loop.loads + loop.stores
        return total


@cache
def tools() -> str:
    """Return the folder of cuobjdump and nvdisasm, which Triton's wheel ships."""
    try:
        import triton  # type: ignore[import-untyped]
    except ImportError as error:
        raise UserError("inspecting kernels needs Triton: pip install triton") from error
    folder = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
    if not os.path.exists(os.path.join(folder, "cuobjdump")):
        raise UserError(
            f"no cuobjdump in {folder}: this Triton was built without NVIDIA's tools; pip install triton"
        )
    return folder


def cuobjdump(*arguments: str) -> str:
    """Run cuobjdump and return what it prints."""
    command = [os.path.join(tools(), "cuobjdump"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def nvidia_figures(machine_code: bytes, num_warps: int, loops: bool) -> Figures:
    """Return the figures of a cubin with one kernel, which has loops over elements or not."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code)
        file.flush()
        usage = cuobjdump("-res-usage", file.name)
        sass = cuobjdump("-sass", file.name)
    figures = sass_figures(usage, sass, num_warps, loops)
    figures.hot = _main_loops(figures.hot)
    return figures


def sass_figures(usage: str, sass: str, num_warps: int, loops: bool = True) -> Figures:
    """Return the figures of one function, from cuobjdump's two listings."""
    match = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    if match is None:
        raise UserError("cuobjdump printed no resource usage: is this another release of the CUDA tools?")
    registers, stack, shared, local = map(int, match.groups())
    lines = [(int(address, 16), text) for address, text in SASS_LINE.findall(sass)]
    resident = nvidia_resident_warps(registers, num_warps)
    return Figures(registers, stack + local, shared, num_warps, resident, _hot_sass(lines, loops))


def nvidia_resident_warps(registers: int, num_warps: int) -> int:
    """Return how many warps of this kernel one multiprocessor holds (compute capability 8.0, 9.0 and 10.0)."""
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = REGISTERS_PER_SM // per_warp // 4 * 4
    blocks = min(by_registers // num_warps, WARPS_PER_SM // num_warps, BLOCKS_PER_SM)
    return blocks * num_warps


def _hot_sass(lines: list[tuple[int, str]], has_loops: bool = True) -> list[Loop]:
    end = next((i for i, (_, text) in enumerate(lines) if text == "EXIT"), len(lines) - 1) + 1
    loops = []
    for i, (address, text) in enumerate(lines):
        branch = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if branch and (target := int(branch.group(1), 16)) < address:
            body = [line for where, line in lines[: i + 1] if where >= target]
            if any(NVIDIA_ACCESS.search(line) for line in body):
                loops.append((target, address, body))
    if not has_loops or not loops:
        return [_sass_loop([text for _, text in lines[:end]])]
    return [_sass_loop(body) for body in _innermost(loops)]


def _innermost(loops: list[tuple[int, int, list[str]]]) -> list[list[str]]:
    """Return the bodies of the loops that contain no other loop; branches to one header belong to one loop."""
    whole: dict[int, tuple[int, int, list[str]]] = {}
    for loop in loops:
        if loop[0] not in whole or whole[loop[0]][1] < loop[1]:
            whole[loop[0]] = loop
    kept = [
        a
        for a in whole.values()
        if not any(b is not a and a[0] <= b[0] and b[1] <= a[1] for b in whole.values())
    ]
    return [body for _, _, body in kept]


def _main_loops(loops: list[Loop]) -> list[Loop]:
    """Return the loop for the mean and the loop of the step: of an unrolled one and its remainder, the unrolled."""
    kept: dict[bool, Loop] = {}
    for loop in loops:
        role = bool(loop.stores)
        if role not in kept or kept[role].load_bytes < loop.load_bytes:
            kept[role] = loop
    return [kept[role] for role in sorted(kept)]


def _sass_loop(body: list[str]) -> Loop:
    loop = Loop(len(body))
    for text in body:
        access = NVIDIA_ACCESS.search(text)
        if access:
            width = next((int(bits) // 8 for bits in re.findall(r"\.(16|32|64|128)\b", access.group())), 4)
            width = 2 if ".U16" in access.group() or ".S16" in access.group() else width
            (loop.loads if access.group().startswith("LDG") else loop.stores)[width] += 1
        # An integer division starts from the reciprocal of an integer rounded up to a float.
        loop.divisions += bool(re.search(r"\bI2F(?:P)?(?:\.\w+)*\.RP\b", text))
    return loop


def amd_figures(assembly: str, num_warps: int, shared: int, loops: bool) -> Figures:
    """Return the figures of one kernel from its AMDGCN assembly."""

    def number(key: str) -> int:
        match = re.search(rf"\.{key}:\s+(\d+)", assembly)
        return int(match.group(1)) if match else 0

    registers = number("vgpr_count")
    per_simd = min(8, 512 // (-(-registers // 8) * 8))
    blocks = per_simd * 4 // num_warps
    spills = number("vgpr_spill_count") + number("sgpr_spill_count")
    return Figures(registers, spills, shared, num_warps, blocks * num_warps, _hot_amd(assembly, loops))


def _hot_amd(assembly: str, has_loops: bool) -> list[Loop]:
    lines: list[str] = []
    labels: dict[str, int] = {}
    for raw in assembly.split(".Lfunc_end")[0].splitlines():
        text = raw.split(";")[0].strip()
        if re.match(r"\.?\w+:$", text):
            labels[text[:-1]] = len(lines)
        elif text and not text.startswith("."):
            lines.append(text)
    loops = []
    for i, text in enumerate(lines):
        branch = re.match(r"s_c?branch\w*\s+(\S+)", text)
        if branch and labels.get(branch.group(1), i + 1) <= i:
            body = lines[labels[branch.group(1)] : i + 1]
            if any("_load_" in line and AMD_ACCESS.search(line) for line in body):
                loops.append((labels[branch.group(1)], i, body))
    bodies = _innermost(loops) if has_loops else []
    return _main_loops([_amd_loop(body) for body in bodies]) or [_amd_loop(lines)]


def _amd_loop(body: list[str]) -> Loop:
    loop = Loop(len(body))
    for text in body:
        access = AMD_ACCESS.search(text)
        if access:
            width = AMD_BYTES.get(access.group(2), 2)
            (loop.loads if access.group(1) == "load" else loop.stores)[width] += 1
        loop.divisions += "v_rcp_iflag" in text
    return loop
