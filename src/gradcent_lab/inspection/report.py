"""The inspection of all cases as plain data, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .compile import TARGETS, Case, compile_case
from .disassembly import Figures, Loop, amd_figures, nvidia_figures
from .roofline import GPUS, predict
from .torch_kernels import torch_figures

Row = dict[str, Any]


def inspect(cases: Iterable[Case], targets: Iterable[str] = TARGETS) -> Iterator[Row]:
    """Compile, disassemble and count every case for every target."""
    for case in cases:
        for target in targets:
            yield inspect_case(case, target)


def inspect_case(case: Case, target: str) -> Row:
    """Return the figures of one case for one target, beside torch's fused kernel where there is one."""
    binary = compile_case(case, target)
    specialisation = case.specialisation
    loops = specialisation.kernel == "columns"
    if target.startswith("sm_"):
        figures = nvidia_figures(binary.machine_code, binary.num_warps, loops)
    else:
        figures = amd_figures(binary.text, binary.num_warps, binary.shared, loops)
    itemsize = case.dtype.itemsize
    elements = _elements_per_iteration(case, figures)
    row: Row = {
        "case": case.name,
        "optimizer": case.optimizer,
        "dtype": str(case.dtype).removeprefix("torch."),
        "target": target,
        "kernel": specialisation.kernel,
        "tile": dict(specialisation.constants),
        "registers": figures.registers,
        "spills": figures.spills,
        "shared_bytes": figures.shared,
        "warps": figures.num_warps,
        "resident_warps": figures.resident_warps,
        "access_bytes": _element_width(figures),
        "integer_divisions": figures.divisions,
        "instructions_per_element": round(
            sum(loop.instructions / count for loop, count in zip(figures.hot, elements, strict=True)), 1
        ),
        "bytes_per_element": sum(bytes_moved(case)),
        "bytes_of_one_pass": bytes_moved(case)[0],
    }
    load_bytes = min(loop.load_bytes for loop in figures.hot if loop.loads)
    for gpu in GPUS:
        if gpu.target == target:
            prediction = predict(
                gpu,
                row["bytes_per_element"],
                row["instructions_per_element"],
                figures.resident_warps,
                load_bytes,
            )
            # torch's step is taken to run at the memory limit: the assumption that is best for it.
            row["prediction"] = {
                "gpu": gpu.name,
                "bound_by": prediction.bound_by,
                "picoseconds_per_element": round(prediction.seconds * 1e12, 2),
                "over_memory_limit": round(
                    prediction.seconds * gpu.bytes_per_second / row["bytes_of_one_pass"], 2
                ),
            }
    torch_row = torch_figures(case.optimizer, case.dtype, target) if target.startswith("sm_") else None
    if torch_row is not None:
        loop = torch_row.hot[0]
        widest = max(loop.loads)
        per_iteration = loop.loads[widest] * widest / (itemsize * (2 + case.states))
        row["torch"] = {
            "registers": torch_row.registers,
            "spills": torch_row.spills,
            "resident_warps": torch_row.resident_warps,
            "access_bytes": widest,
            "instructions_per_element": round(loop.instructions / per_iteration, 1),
            "bytes_per_element": bytes_moved(case)[0],
        }
    return row


def bytes_moved(case: Case) -> tuple[int, int]:
    """Return the bytes per element of a step in one pass, and those that a second pass reads again."""
    itemsize = case.dtype.itemsize
    if case.optimizer == "centralize":
        once = 2 * itemsize
    else:
        once = (3 + 2 * case.states) * itemsize  # read w, g and states; write w and states
    if case.specialisation.kernel == "rows":
        return once, 0
    if case.update:
        return once, (2 + case.states) * itemsize
    return once, (2 if case.decay == "PROJECTED" else 1) * itemsize


def _operands(case: Case, loop: Loop) -> int:
    """How many tensors a piece of code reads: the pass for the mean needs less than the step."""
    if case.optimizer == "centralize":
        return 1
    if loop.stores or case.update:
        return 2 + case.states
    return 2 if case.decay == "PROJECTED" else 1


def _element_width(figures: Figures) -> int:
    """The width of the accesses to elements: in each piece of hot code the one that moves most bytes."""
    return min(max(loop.loads, key=lambda w: w * loop.loads[w]) for loop in figures.hot if loop.loads)


def _elements_per_iteration(case: Case, figures: Figures) -> list[float]:
    """Elements that a thread handles per iteration of each piece of hot code (compilers unroll loops)."""
    if case.specialisation.kernel == "rows":
        return [case.specialisation.per_thread] * len(figures.hot)
    counts = []
    for loop in figures.hot:
        count = loop.load_bytes / (_operands(case, loop) * case.dtype.itemsize)
        counts.append(float(max(count, case.specialisation.per_thread)))
    return counts


def markdown(rows: list[Row]) -> str:
    """Return the figures as a table, torch's in brackets."""
    heads = (
        "step", "tensor", "dtype", "target", "registers", "spills", "shared", "resident warps", "access bits",
        "integer divisions", "instructions per element", "bytes per element",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        torch_row = row.get("torch", {})

        def beside(key: str, factor: int = 1, row: Row = row, torch_row: Row = torch_row) -> str:
            return f"{row[key] * factor:g}" + (f" ({torch_row[key] * factor:g})" if key in torch_row else "")

        cells = (
            *(row[key] for key in ("optimizer", "case", "dtype", "target")),
            beside("registers"),
            beside("spills"),
            f"{row['shared_bytes']}",
            beside("resident_warps"),
            beside("access_bytes", 8),
            f"{row['integer_divisions']}",
            beside("instructions_per_element"),
            beside("bytes_per_element"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def roofline_markdown(rows: list[Row]) -> str:
    """Return the predictions as a table."""
    lines = [
        "| step | tensor | dtype | GPU | bound by | ÷ a fused step at the memory limit |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        prediction = row.get("prediction")
        if prediction:
            lines.append(
                f"| {row['optimizer']} | {row['case']} | {row['dtype']} | {prediction['gpu']} | "
                f"{prediction['bound_by']} | {prediction['over_memory_limit']:.2f} |"
            )
    return "\n".join(lines)


def worse_than_torch(rows: list[Row]) -> list[str]:
    """Return one line for every figure that is worse than torch's."""
    lines = []
    for row in rows:
        torch_row = row.get("torch", {})
        what = f"{row['optimizer']} {row['case']} {row['dtype']} {row['target']}"
        for key, sign in (
            ("registers", 1),
            ("spills", 1),
            ("resident_warps", -1),
            ("access_bytes", -1),
            ("instructions_per_element", 1),
            ("bytes_per_element", 1),
        ):
            if key in torch_row and sign * (row[key] - torch_row[key]) > 0:
                lines.append(f"{what}: {key.replace('_', ' ')} {row[key]:g}, torch {torch_row[key]:g}")
    return lines


def docs_blocks(rows: list[Row]) -> dict[str, str]:
    """Return the blocks of docs/kernels.md that come from the committed inspection."""
    excerpt = [
        row
        for row in rows
        if row["dtype"] == "float32"
        and row["optimizer"] in ("SGDM", "Adam")
        and row["case"] in ("rows of 64", "rows of 1,024", "rows of 4,096", "rows of 16,384", "columns")
    ]
    nvidia = [row for row in excerpt if row["target"] in ("sm_80", "sm_90")]
    worse = worse_than_torch([row for row in rows if "update" not in row["case"]])
    return {
        "inspection": markdown(nvidia),
        "worse": "\n".join(f"- {line}" for line in worse) or "Nothing.",
        "roofline": roofline_markdown(excerpt),
    }
