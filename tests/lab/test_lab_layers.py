"""Dependencies of the lab point one way: each package imports only packages below it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from import_layers import imports_of

SRC = Path(__file__).resolve().parents[2] / "src"

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
    "forecasting": {"experiment", "data"},
    "adapters": {"experiment", "data"},
    "analysis": {"experiment", "data", "models", "store"},
    "report": {"experiment", "store", "analysis"},
    "detection": {"experiment", "data", "models", "store"},
    "bench": {"experiment", "data", "models", "store"},
    "inspection": set(),
    "recipes": {
        "experiment",
        "data",
        "models",
        "store",
        "run",
        "forecasting",
        "analysis",
        "report",
        "detection",
    },
    "compare": {"experiment", "data", "store", "run", "analysis", "report", "forecasting"},
    "commands": {
        *("experiment", "data", "models", "store", "run", "analysis", "report", "detection", "bench"),
        *("recipes", "compare", "forecasting"),
        "inspection",
    },
    "cli": {"run"},  # the stop signal only; finds a command's module by its name
}


def wrong_imports(root: Path) -> list[str]:
    """Return the imports that ALLOWED does not allow, those inside functions too."""
    wrong = []
    for path in sorted((root / "gradcent_lab").rglob("*.py")):
        package = path.relative_to(root / "gradcent_lab").with_suffix("").parts[0]
        if package == "__init__":
            continue
        allowed = ALLOWED[package] | OPEN_TO_ALL | {package}
        for line, module in imports_of(path, root):
            names = module.split(".")
            if names[0] == "gradcent_lab" and (len(names) == 1 or names[1] not in allowed):
                wrong.append(f"{path.relative_to(root)}:{line} imports {module}")
    return wrong


def test_every_package_imports_only_those_below_it():
    assert wrong_imports(SRC) == []


def test_the_layers_have_no_cycle():
    """The table above is itself one-way: packages can be listed so that each comes after all it may import."""
    remaining = {name: set(below) for name, below in ALLOWED.items()}
    while remaining:
        lowest = [name for name, below in remaining.items() if not below & remaining.keys()]
        assert lowest, f"cycle among {sorted(remaining)}"
        for name in lowest:
            del remaining[name]


def test_an_upward_import_is_noticed(tmp_path):
    package = tmp_path / "gradcent_lab" / "store"
    (tmp_path / "gradcent_lab" / "recipes").mkdir(parents=True)
    package.mkdir()
    (package / "upward.py").write_text(
        "from gradcent_lab.errors import UserError\n"
        "def f():\n    from gradcent_lab import recipes\n    import gradcent_lab.commands.run\n"
    )
    assert wrong_imports(tmp_path) == [
        "gradcent_lab/store/upward.py:3 imports gradcent_lab.recipes",
        "gradcent_lab/store/upward.py:4 imports gradcent_lab.commands.run",
    ]


def test_reading_every_recipe_imports_no_torch():
    """`gradcent list` is fast because describing an experiment needs none of the packages that run it."""
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
