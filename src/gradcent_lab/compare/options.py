"""The options of `gradcent compare` in other forms: keyword arguments, a command that repeats it, facts."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, Arm
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.run.dry_run import Prepared

GC_ARMS = ("all", "conv", "linear", "hidden", "input")  # what --arms may name besides off
ROLES = ("hidden", "input")

# options that are left out of the repeated command where they have these values
DEFAULTS: dict[str, Any] = {
    "epochs": None,
    "optimizer": None,
    "lr": None,
    "at": "gradient",
    "layers": "all",
    "arms": None,
    "decay": "auto",
    "margin": None,
    "target": None,
    "tune_seeds": 2,
    "gc_on": "--gc",
    "gc_off": "",
    "metric": "metric",
    "metric_file": None,
}


def attach_options(args: argparse.Namespace, layers: str | None = None) -> dict[str, Any]:
    """Return the keyword arguments of `gradcent.attach` that the options ask for; defaults are left out."""
    defaults = {"at": "gradient", "decay": "auto"}
    given = {name: getattr(args, name) for name, value in defaults.items() if getattr(args, name) != value}
    return {"layers": layers or args.layers, **given}


def parse_arms(text: str) -> tuple[str, ...]:
    """Read `--arms off,all,hidden`; return the arms with GC.

    >>> parse_arms("off, all,hidden")
    ('all', 'hidden')
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in ("off", *GC_ARMS):
            raise UserError(f"--arms: there is no arm {name!r}: choose off and some of {', '.join(GC_ARMS)}")
    if len(set(names)) < len(names):
        raise UserError(f"--arms {text}: an arm is listed twice")
    if "off" not in names:
        raise UserError(f"--arms {text}: off is missing, which the others are compared with")
    if len(names) < 2:
        raise UserError(f"--arms {text}: name an arm with GC too, some of {', '.join(GC_ARMS)}")
    return tuple(name for name in names if name != "off")


def make_arms(args: argparse.Namespace) -> list[Arm]:
    """Return the arm without GC and those with GC; without --arms there is one, called `on`."""
    if args.arms is None:
        return [OFF, Arm("on", attach_options(args))]
    return [OFF, *(Arm(name, attach_options(args, name)) for name in parse_arms(args.arms))]


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


def paste_lines(attach: Mapping[str, Any]) -> str:
    """Return the lines that turn on what was compared.

    >>> print(paste_lines({"layers": "hidden"}).splitlines()[-1])
    gradcent.attach(optimizer, model, layers="hidden", example=batch)  # batch: what the model is called with
    """
    options = {name: value for name, value in attach.items() if (name, value) != ("layers", "all")}
    keywords = "".join(f', {name}="{value}"' for name, value in options.items())
    by_role = attach.get("layers") in ROLES
    example, comment = (
        (", example=batch", "  # batch: what the model is called with") if by_role else ("", "")
    )
    return f"import gradcent\n\ngradcent.attach(optimizer, model{keywords}{example}){comment}"


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
        "pairs": f"{count} {_sides(args)}, from the same weights on the same batches",
    }


def _sides(args: argparse.Namespace) -> str:
    if args.arms is None:
        return "without and with GC"
    return f"without GC and with GC in {', '.join(parse_arms(args.arms))}"


def _batch(experiment: Experiment) -> str:
    """The size of a training batch; a DataLoader has a size of its own."""
    from gradcent_lab.data.batches import resolve

    data = resolve(experiment.train_data)
    if hasattr(data, "take") or (hasattr(data, "__getitem__") and not hasattr(data, "batch_sampler")):
        return f"batch {experiment.batch_size}"
    size = getattr(data, "batch_size", None)
    return f"batch {size}" if size else "batches as the data yields them"
