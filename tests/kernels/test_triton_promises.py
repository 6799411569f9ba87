"""What the compiled GPU kernels must look like, held for two compute capabilities without a GPU."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from gradcent_lab.inspection.compile import Case, columns, compile_case, rows
from gradcent_lab.inspection.report import docs_blocks, inspect_case
from gradcent_lab.inspection.torch_kernels import library, torch_figures

SHORT = [
    Case("rows of 64", "Adam", layout=rows(64)),
    Case("rows of 1,024", "Adam", layout=rows(1024)),
    Case("rows of 1,024", "SGDM", layout=rows(1024)),
    Case("rows of 1,024, bfloat16", "Adam", torch.bfloat16, rows(1024)),
    Case("no layout", "Adam"),
]
LONG = [
    Case("rows of 4,096", "Adam", layout=rows(4096)),
    Case("rows of 16,384", "Adam", layout=rows(16384)),
    Case("columns", "Adam", layout=columns(1024)),
    Case("columns", "SGDM", layout=columns(1024)),
]
UNALIGNED = [Case("rows of 4,096, unaligned", "Adam", layout=rows(4096), aligned=False)]
TARGETS = ["sm_80", "sm_90"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Compile anew: a kernel in the user's cache proves nothing."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))


@pytest.mark.parametrize("target", TARGETS)
def test_promises(target):
    if library() is None:
        pytest.skip("this build of torch has no CUDA library to compare with")
    for case in SHORT + LONG + UNALIGNED:
        row = inspect_case(case, target)
        what = f"{case.name} {case.optimizer} {target}: {row}"
        assert row["spills"] == 0, what
        assert row["integer_divisions"] == 0, what
        assert row["resident_warps"] >= 24, what
        if case.aligned:
            assert row["access_bytes"] == 16, what
        if case in SHORT:
            theirs = torch_figures(case.optimizer, case.dtype, target)
            assert row["registers"] <= theirs.registers, what
            assert row["resident_warps"] >= theirs.resident_warps, what
        if row["kernel"] == "rows":
            assert row["bytes_per_element"] == row["bytes_of_one_pass"], what
        else:  # the second pass reads gradient and weight again
            assert row["bytes_per_element"] == row["bytes_of_one_pass"] + 8, what


def test_the_source_has_no_integer_division():
    """What the counting of machine code could overlook."""
    import re

    for case in (SHORT[1], LONG[2]):
        assert not re.search(r"\b(?:div|rem)\.[su]\d+", compile_case(case, "sm_90").text)


def test_inspection_sees_a_bad_kernel():
    """The counting itself: a division per element and narrow accesses do not pass unseen."""
    from gradcent_lab.inspection.disassembly import _hot_sass

    lines = [
        "LDG.E R2, [R4]",
        "I2F.U32.RP R3, R5",
        "MUFU.RCP R3, R3",
        "STG.E.U16 [R4], R2",
        "@P0 BRA 0x0",
        "EXIT",
    ]
    (loop,) = _hot_sass([(16 * i, text) for i, text in enumerate(lines)])
    assert (loop.instructions, loop.divisions, dict(loop.loads), dict(loop.stores)) == (5, 1, {4: 1}, {2: 1})


def test_compiles_for_other_targets():
    for target in ("sm_100", "gfx942"):
        row = inspect_case(Case("rows of 256", "SGDM", layout=rows(256)), target)
        assert (row["spills"], row["integer_divisions"], row["access_bytes"]) == (0, 0, 16)


def test_the_page_shows_the_committed_inspection():
    root = Path(__file__).parents[2]
    rows = json.loads((root / "results" / "kernels" / "inspection.json").read_text())["kernels"]
    page = (root / "docs" / "kernels.md").read_text()
    for name, block in docs_blocks(rows).items():
        shown = page.split(f"<!-- begin {name} -->\n")[1].split(f"\n<!-- end {name} -->")[0]
        assert shown == block, f"docs/kernels.md, block {name}: run `make inspect-kernels`"
    assert not any(row["spills"] or row["integer_divisions"] for row in rows)
