"""Dependencies of the lab point one way: each package imports only packages below it."""

from __future__ import annotations

import ast
from pathlib import Path

import gradcent_lab

ROOT = Path(gradcent_lab.__file__).parent

# package → the packages it may import besides those open to all
OPEN_TO_ALL = {"errors", "names"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "names": set(),
    "experiment": set(),
    "data": {"experiment", "store"},
    "models": {"experiment", "data"},
    "store": {"experiment"},
    "run": {"experiment", "data", "store"},
    "analysis": {"experiment", "data", "models", "store"},
    "report": {"experiment", "store", "analysis"},
    "detection": {"experiment", "data", "models", "store"},
    "bench": {"experiment", "data", "models", "store"},
    "recipes": {"experiment", "data", "models", "store", "run", "analysis", "report", "detection"},
    "commands": {
        *("experiment", "data", "models", "store", "run", "analysis", "report", "detection", "bench"),
        "recipes",
    },
    "cli": {"run"},  # the stop signal only; finds a command's module by its name
}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def lab_imports(path: Path) -> set[str]:
    """Return the lab's packages that a file imports anywhere, also inside functions and for type checking."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write gradcent_lab.…"
            module = node.module or ""
            names = (
                [f"{module}.{alias.name}" for alias in node.names] if module == "gradcent_lab" else [module]
            )
        packages |= {name.split(".")[1] for name in names if name.startswith("gradcent_lab.")}
    return packages


def test_every_package_imports_only_those_below_it():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        package = package_of(path)
        if package == "__init__":
            continue
        for imported in sorted(lab_imports(path) - ALLOWED[package] - {package} - OPEN_TO_ALL):
            wrong.append(f"{path.relative_to(ROOT)} imports {imported}")
    assert wrong == []


def test_the_layers_have_no_cycle():
    """The table above is itself one-way: packages can be listed so that each comes after all it may import."""
    remaining = {name: set(below) for name, below in ALLOWED.items()}
    while remaining:
        lowest = [name for name, below in remaining.items() if not below & remaining.keys()]
        assert lowest, f"cycle among {sorted(remaining)}"
        for name in lowest:
            del remaining[name]


def test_an_upward_import_is_noticed(tmp_path):
    file = tmp_path / "upward.py"
    file.write_text("def f():\n    from gradcent_lab import recipes\n    import gradcent_lab.commands.run\n")
    assert lab_imports(file) == {"recipes", "commands"}


def test_reading_every_recipe_imports_no_torch():
    """`gradcent list` is fast because describing an experiment needs none of the packages that run it."""
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from gradcent_lab.recipes import all_recipes\n"
        "for recipe in all_recipes().values():\n"
        "    for scale in recipe.scales: recipe.study(scale.name)\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'torchvision'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
