"""A user's own experiment: find the function, check what it returns, apply what the command line changes.

Everything that can be wrong is found before the first run and said in one line.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gradcent_lab.config import Arm
from gradcent_lab.errors import UserError
from gradcent_lab.experiment import Experiment
from gradcent_lab.files import make_folder


@dataclasses.dataclass(frozen=True)
class Changes:
    """What the command line changes of an experiment; None leaves it as the function says."""

    epochs: int | None = None
    optimizer: str | None = None
    lr: float | None = None


def build(spec: str, changes: Changes) -> Experiment:
    """Return the experiment of `module:function`; importable, so that worker processes can call it."""
    made = _call(spec, find(spec))
    check(made, spec)
    return apply(made, changes)


def find(spec: str) -> Callable[[], Any]:
    """Import the module (or file) of `module:function` and return the function."""
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise UserError(
            f"{spec!r} does not name a function: write module:function, or path/to/file.py:function"
        )
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    function = getattr(module, name, None)
    if function is None:
        own = [
            n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__
        ]
        public = [n for n in own if not n.startswith("_")]
        has = f"its functions are {', '.join(public)}" if public else "it defines no function"
        raise UserError(f"{place} has no {name}: {has}")
    if not callable(function):
        raise UserError(f"{spec} is {a(function)}, not a function that returns an Experiment")
    return function  # type: ignore[no-any-return]


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise UserError(
                f"there is no module {missing!r} in {here} or among the installed packages"
            ) from error
        raise UserError(f"{name} needs a module that is not installed: {missing}") from error
    except Exception as error:
        raise UserError(f"importing {name} failed: {one_line(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    name = f"_experiment_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{path} needs a module that is not installed: {error.name}") from error
    except Exception as error:
        raise UserError(f"running {path} failed: {one_line(error)}") from error
    return module


def _call(spec: str, function: Callable[[], Any]) -> Any:
    required = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if required:
        raise UserError(f"{spec} must need no arguments, but has {', '.join(required)}: give them defaults")
    try:
        return function()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{spec} raised {one_line(error)}") from error


def check(made: Any, spec: str) -> None:
    """Refuse what is not an Experiment, or is one whose parts cannot be what they should."""
    if not isinstance(made, Experiment):
        kind = "nothing" if made is None else a(made)
        raise UserError(f"{spec} returned {kind}, not a gradcent_lab.experiment.Experiment")
    for name in ("model", "loss", "metric", "optimizer"):
        value = getattr(made, name)
        built = name in ("model", "optimizer") and hasattr(value, "state_dict") and not inspect.isclass(value)
        if built or not callable(value):
            what = f"a function that makes the {name}, afresh for every run" if built else "a function"
            raise UserError(f"{spec}: Experiment.{name} must be {what}, not {a(value)}")
    for name in ("epochs", "batch_size"):
        value = getattr(made, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{spec}: Experiment.{name} must be a whole number of 1 or more, not {value!r}")
    if not made.name or not isinstance(made.name, str) or set(made.name) & set('/\\:*?"<>|'):
        raise UserError(f"{spec}: Experiment.name must be a word that can name a folder, not {made.name!r}")


def apply(made: Experiment, changes: Changes) -> Experiment:
    """Return the experiment with the command line's changes."""
    replaced: dict[str, Any] = {}
    if changes.epochs is not None:
        replaced["epochs"] = changes.epochs
    if changes.optimizer is not None or changes.lr is not None:
        replaced["optimizer"] = _Optimizer(made.optimizer, changes.optimizer, changes.lr)
        if made.settings is not None:
            said = {"optimizer_option": changes.optimizer, "lr_option": changes.lr}
            replaced["settings"] = {**made.settings, **{k: v for k, v in said.items() if v is not None}}
    return dataclasses.replace(made, **replaced)


@dataclasses.dataclass(frozen=True)
class _Optimizer:
    """The experiment's optimizer with another class, or another learning rate."""

    own: Callable[[Any], Any]
    name: str | None
    lr: float | None

    def __call__(self, params: Any) -> Any:
        if self.name is None:
            made = self.own(params)
            rates = {float(group["lr"]) for group in made.param_groups}
            if len(rates) > 1:
                listed = ", ".join(f"{rate:g}" for rate in sorted(rates))
                raise UserError(
                    f"--lr cannot replace several learning rates ({listed}): change them in your function"
                )
            for group in made.param_groups:
                group["lr"] = self.lr
            return made
        kind, options = parse_optimizer(self.name)
        if self.lr is not None:
            options["lr"] = self.lr
        try:
            return kind(params, **options)
        except (TypeError, ValueError) as error:
            raise UserError(f"--optimizer {self.name}: {error}") from error


def parse_optimizer(text: str) -> tuple[type, dict[str, Any]]:
    """Read `AdamW` or `SGD(momentum=0.9, weight_decay=5e-4)`: a class of torch.optim, and its options."""
    import torch

    try:
        tree = ast.parse(text.strip(), mode="eval").body
        call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        if call.args or not isinstance(call.func, ast.Name):
            raise ValueError
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
        name = call.func.id
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"--optimizer {text}: write a name, or 'SGD(momentum=0.9, weight_decay=5e-4)'"
        ) from error
    kinds = {
        key: value
        for key, value in vars(torch.optim).items()
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    }
    if name not in kinds:
        raise UserError(f"--optimizer {name}: torch.optim has {', '.join(sorted(kinds))}")
    return kinds[name], options


def check_attach(made: Experiment, arms: list[Arm]) -> str:
    """Build the model once and attach every arm; return what would be centralized, in words."""
    import torch

    import gradcent

    words = ""
    for arm in arms:
        if arm.attach is None:
            continue
        try:
            with torch.random.fork_rng(devices=[]):
                model = made.model()
                params = made.parameters(model) if made.parameters else model.parameters()
                optimizer = made.optimizer(params)
            gradcent.attach(optimizer, model, **arm.attach)
        except UserError:
            raise
        except Exception as error:
            said = str(error) if isinstance(error, ValueError) else one_line(error)
            raise UserError(said) from error
        layers = arm.attach.get("layers", "all")
        entries = gradcent.Plan.of(model, layers=layers).entries
        chosen = [entry for entry in entries if entry.centralized]
        weights = sum(entry.numel for entry in chosen)
        words = f"{len(chosen)} of {len(entries)} parameters ({weights:,} weights), layers {layers!r}"
    return words


def broken(spec: str, error: Exception, out: Path) -> UserError:
    """Return one line for what failed in the middle of a run, and leave the whole traceback in a file."""
    path = make_folder(out) / "traceback.txt"
    path.write_text("".join(traceback.format_exception(error)))
    lines = [line for line in str(error).splitlines() if line.strip()]
    # what failed in a worker process comes with its traceback as text, the error in the last line
    said = lines[-1] if "Traceback (most recent call last):" in str(error) else one_line(error)
    return UserError(f"{spec} failed in training: {said}; finished runs are kept, the traceback is in {path}")


def a(value: Any) -> str:
    """Return the kind of a thing with its article: `a dict`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def one_line(error: BaseException) -> str:
    """Return an error as one line, with the line of the user's file where it happened."""
    text = " ".join(str(error).split()) or "(no message)"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    # the user's own line, not the one of torch or of this package that it ended in
    own = [f for f in frames if not _installed(Path(f.filename))]
    last = (own or frames or [None])[-1]
    at = f" ({Path(last.filename).name}, line {last.lineno})" if last else ""
    return f"{type(error).__name__}: {text}{at}"


def _installed(path: Path) -> bool:
    lab = Path(__file__).parent
    ours = path.is_relative_to(lab) or path.is_relative_to(lab.parent / "gradcent")
    return ours or bool({"site-packages", "dist-packages"} & set(path.parts))
