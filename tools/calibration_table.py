"""Write the calibration table of src/gradcent/calibration.py from results/studies/forecast.

`python tools/pages.py` calls it; the library reads no file and imports nothing of the lab.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "gradcent" / "calibration.py"
BEGIN, END = "# begin generated\n", "# end generated\n"


def filled(text: str) -> str:
    """Return the module's text with its table generated again."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{block()}{END}{after}"


def block() -> str:
    """Return the generated lines."""
    from gradcent_lab.forecasting.calibration.outcomes import outcomes
    from gradcent_lab.forecasting.calibration.tasks import all_tasks
    from gradcent_lab.store import records

    stored = [record for record in records.load(ROOT / "results" / "studies") if record.study == "forecast"]
    found = outcomes({record.cell: record.curves for record in stored})
    kinds = seen_kinds()
    lines = [
        "# fmt: off",
        f"OPTIMIZERS: tuple[str, ...] = {literal(sorted({task.optimizer for task in all_tasks()}))}",
        f"LAYERS: tuple[str, ...] = {literal(sorted(kinds[0]))}",
        f"MOST_WEIGHTS = {kinds[1]:_}",
        "POINTS: tuple[Point, ...] = (",
    ]
    for entry in found:
        explained = None if entry.explained is None else round(entry.explained, 3)
        train = entry.train["all"]
        lines.append(
            f'    Point("{entry.task.name}", {entry.removed:.4f}, {train.mean:.4f}, {train.faster}, {train.slower}, '
            f"{explained}, {entry.harmed}, {entry.harmed_hidden}),"
        )
    return "\n".join([*lines, ")", "# fmt: on", ""])


def seen_kinds() -> tuple[set[str], int]:
    """Return the classes of the layers that the calibration centralizes, and the weights of its largest network."""
    from torch import nn

    import gradcent
    from gradcent_lab.forecasting.calibration.tasks import all_tasks
    from gradcent_lab.forecasting.unseen import layer_classes

    classes: set[str] = set()
    most = 0
    for task in all_tasks():
        model = task.build_model()
        plan = gradcent.explain(model)
        for names in layer_classes(model, plan):
            classes.add(next(name for name in names if hasattr(nn, name)))
        most = max(most, sum(param.numel() for param in model.parameters()))
    return classes, most


def literal(names: list[str]) -> str:
    """Return a tuple of strings as source."""
    return "(" + ", ".join(f'"{name}"' for name in names) + ",)"
