"""The options of `gradcent compare` in other forms: keyword arguments, a command that repeats it, facts."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.run.dry_run import Prepared

# options that are left out of the repeated command where they have these values
DEFAULTS: dict[str, Any] = {
    "epochs": None,
    "optimizer": None,
    "lr": None,
    "at": "gradient",
    "layers": "all",
    "decay": "auto",
    "margin": None,
    "target": None,
    "tune_seeds": 2,
    "gc_on": "--gc",
    "gc_off": "",
    "metric": "metric",
    "metric_file": None,
}


def attach_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `gradcent.attach` that the options ask for; defaults are left out."""
    defaults = {"at": "gradient", "decay": "auto"}
    given = {name: getattr(args, name) for name, value in defaults.items() if getattr(args, name) != value}
    return {"layers": args.layers, **given}


def command_line(args: argparse.Namespace) -> str:
    """Return the command that repeats this comparison; options at their defaults are left out."""
    words = ["gradcent", "compare"]
    words += ["--command", args.script] if args.script else [args.function]
    words += (
        ["--until-decided", "--max-seeds", str(args.max_seeds)]
        if args.until_decided
        else ["--seeds", str(args.seeds)]
    )
    for option in args.tune:
        words += ["--tune", option]
    for name, default in DEFAULTS.items():
        value = getattr(args, name)
        if value != default and (name != "tune_seeds" or args.tune):
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--recalibrate-bn"] if args.recalibrate_bn else []
    words += ["--lower-is-better"] if args.lower_is_better else []
    return shlex.join(words)


def paste_lines(args: argparse.Namespace) -> str:
    """Return the lines that turn on what was compared."""
    options = {
        name: value for name, value in attach_options(args).items() if (name, value) != ("layers", "all")
    }
    keywords = "".join(f', {name}="{value}"' for name, value in options.items())
    return f"import gradcent\n\ngradcent.attach(optimizer, model{keywords})"


def describe(prepared: Prepared, args: argparse.Namespace) -> dict[str, str]:
    """Return the lines that describe the comparison."""
    experiment = prepared.experiment
    rate = ", ".join(f"{value:g}" for value in prepared.learning_rates)
    if args.until_decided:
        count = f"3 to {args.max_seeds} seeds, each"
    else:
        count = "1 seed" if args.seeds == 1 else f"{args.seeds} seeds, each"
    return {
        "network": f"{prepared.model}, {prepared.weights:,} parameters",
        "training": f"{prepared.optimizer}, lr {rate}, {experiment.epochs} epochs, {_batch(experiment)}",
        "pairs": f"{count} without and with GC, from the same weights on the same batches",
    }


def _batch(experiment: Experiment) -> str:
    """The size of a training batch; a DataLoader has a size of its own."""
    from gradcent_lab.data.batches import resolve

    data = resolve(experiment.train_data)
    if hasattr(data, "take") or (hasattr(data, "__getitem__") and not hasattr(data, "batch_sampler")):
        return f"batch {experiment.batch_size}"
    size = getattr(data, "batch_size", None)
    return f"batch {size}" if size else "batches as the data yields them"
