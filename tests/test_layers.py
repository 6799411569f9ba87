"""The library's imports point one way: from the public entry points down to the equations, never to the lab."""

from __future__ import annotations

from pathlib import Path

from import_layers import imports_of, wrong_imports

SRC = Path(__file__).parents[1] / "src"

# A part may import parts of lower layers only.
LAYERS = {
    name: layer
    for layer, names in enumerate(
        [
            ["layout", "decay", "calibration", "user_warning"],
            ["operator", "plan"],
            ["kernels", "compile_ops"],
            ["dtensor"],
            ["functional", "options"],
            ["attachment"],
            ["step_hooks", "gradient_hooks"],
            ["optim"],
            ["attach", "diagnostics"],
            ["authors", "integrations"],
        ]
    )
    for name in names
}


def test_imports_point_to_lower_layers() -> None:
    assert wrong_imports(SRC, "gradcent", LAYERS) == []


def test_the_library_does_not_import_the_lab_or_the_tests() -> None:
    for path in sorted((SRC / "gradcent").rglob("*.py")):
        packages = {module.split(".")[0] for _, module in imports_of(path, SRC)}
        assert not packages & {"gradcent_lab", "tests", "pytest"}, path


def test_every_layer_names_a_part_of_the_library() -> None:
    parts = {path.stem for path in (SRC / "gradcent").iterdir()}
    assert set(LAYERS) <= parts


def test_a_wrong_import_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "example"
    (package / "low").mkdir(parents=True)
    (package / "__init__.py").write_text("from .high import answer\n")
    (package / "high.py").write_text("from .low import file\nfrom . import low\nanswer = 42\n")
    (package / "low" / "__init__.py").write_text("")
    (package / "low" / "file.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..high import answer\n"
        "def late():\n    from ..high import answer\n    from example.high import answer as again\n"
    )
    (package / "extra.py").write_text("import os\n")
    assert wrong_imports(tmp_path, "example", {"low": 0, "high": 1}) == [
        "example/extra.py has no layer",
        "example/low/file.py:5 imports example.high",
        "example/low/file.py:6 imports example.high",
    ]
