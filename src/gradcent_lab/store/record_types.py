"""The types of the fields of a stored run, checked when it is loaded: the report relies on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.names import check_label
from gradcent_lab.store.atomic_files import Damaged

_NUMBER = (int, float)
_CONFIG: dict[str, Any] = {
    "study": str,
    "cell": str,
    "arm": dict,
    "seed": int,
    "scale": str,
    "settings": dict,
    "numerics": dict,
}
_RESULT: dict[str, Any] = {
    "best": _NUMBER,
    "best_epoch": int,
    "last": _NUMBER,
    "metric_name": str,
    "higher_is_better": bool,
    "initial_weights": str,
    "seconds": _NUMBER,
}
_RUN_TIMES: dict[str, Any] = {"wall_seconds": _NUMBER, "processor_seconds": _NUMBER}  # newer runs have them
_NUMERICS: dict[str, Any] = {"precision": str, "compile": bool, "channels_last": bool}
# quantities of a line of metrics.jsonl that tables and figures compute with, where a line has them
CURVES: dict[str, Any] = {
    "train_loss": _NUMBER,
    "train_metric": (*_NUMBER, type(None)),  # None where an experiment evaluates in its own way
    "eval_loss": (*_NUMBER, type(None)),
    "eval_metric_bn_control": _NUMBER,
    "lr": _NUMBER,
    "steps": int,
    "batches": str,
    "seconds": _NUMBER,
    "samples_per_second": _NUMBER,
}
_LARGEST = 1e300  # beyond this a sum of squares overflows


def check_types(
    folder: Path,
    config: Any,
    result: dict[str, Any],
    environment: Any,
    curves: list[dict[str, Any]],
) -> None:
    """Raise `Damaged` unless every field that the report uses has its type."""
    _check(folder / "config.json", config, _CONFIG)
    _check(folder / "config.json", config["arm"], {"name": str, "attach": (dict, type(None))})
    _check(folder / "config.json", config["numerics"], _NUMERICS)
    if type(config["settings"].get("epochs", 0)) is not int:
        raise Damaged(_message(folder / "config.json", "settings.epochs is not a whole number"))
    _check(folder / "result.json", result, _RESULT)
    _check(folder / "result.json", result, {name: _RUN_TIMES[name] for name in _RUN_TIMES if name in result})
    metrics = result.get("metrics", [])
    if not isinstance(metrics, list) or not all(isinstance(name, str) for name in metrics):
        raise Damaged(_message(folder / "result.json", "metrics is not a list of names"))
    if not isinstance(environment, dict) or not isinstance(environment.get("versions", {}), dict):
        raise Damaged(_message(folder / "environment.json", "it is not a description of a machine"))
    for line in curves:
        if result["best_epoch"] or "eval_metric" in line:  # the second: an epoch of a user's script
            named = dict.fromkeys((name for name in metrics if name in line), _NUMBER)
            known = {name: kinds for name, kinds in CURVES.items() if name in line}
            fields = {"epoch": int, "eval_metric": _NUMBER, **named, **known}
            _check(folder / "metrics.jsonl", line, fields)


def check_recipe(path: Path, document: Any) -> None:
    """Raise `Damaged` unless `recipe.json` has its fields."""
    _check(path, document, {"recipe": str, "scale": str, "is_paper": bool, "switches": dict})
    if not all(isinstance(choice, str) for choice in document["switches"].values()):
        raise Damaged(_message(path, "a switch has no name as its choice"))


def _check(path: Path, document: Any, fields: dict[str, Any]) -> None:
    if not isinstance(document, dict):
        raise Damaged(_message(path, "it is not an object"))
    for name, kinds in fields.items():
        if name not in document:
            raise Damaged(f"{path} lacks {name!r}: delete its folder and run again")
        value = document[name]
        boolean = isinstance(value, bool) and kinds is not bool  # True is an int for isinstance
        if not isinstance(value, kinds) or boolean:
            raise Damaged(_message(path, f"{name} is of type {type(value).__name__}"))
        if isinstance(value, str):
            try:
                check_label(value, name)
            except UserError as error:
                raise Damaged(_message(path, str(error))) from error
        if isinstance(value, int | float) and abs(value) > _LARGEST:
            raise Damaged(_message(path, f"{name} is beyond 1e300"))


def _message(path: Path, reason: str) -> str:
    return f"{path} is damaged ({reason}): delete its folder and run again"
