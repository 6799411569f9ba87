"""`gradcent explain`: print the plan of a model named on the command line.

An Experiment brings its first training batch along: one traced forward pass shows roles, levels and the weight vectors
of modules that no class rule knows. Other models take an example by its shape.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gradcent


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "model",
        help="torchvision:resnet50, timm:vit_tiny_patch16_224, or module:function (file.py:function) that returns a "
        "model or an Experiment",
    )
    parser.add_argument(
        "--layers",
        choices=("all", "conv", "linear", "hidden", "input"),
        default="all",
        help="which layers (default: all); hidden and input need an example",
    )
    parser.add_argument(
        "--example",
        metavar="SHAPE",
        help="trace a forward pass on an input of this shape: 1,3,224,224 (an Experiment has its own batch)",
    )
    parser.add_argument("--brief", action="store_true", help="print the totals only")
    parser.add_argument("--json", action="store_true", help="print plain data instead of the table")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    plan = make_plan(args.model, args.layers, args.example)
    if args.json:
        print(json.dumps({"totals": plan.totals(), "parameters": plan.rows()}, indent=1))
    else:
        print(plan.summary() if args.brief else plan)
    return 0


def make_plan(spec: str, layers: Any, shape: str | None) -> gradcent.Plan:
    """Plan what the specification names, traced where there is an example."""
    from torch import nn

    import gradcent
    from gradcent_lab.errors import UserError
    from gradcent_lab.experiment.import_spec import described
    from gradcent_lab.experiment.spec import Experiment

    example = None if shape is None else read_shape(shape)
    model = load_model(spec)
    if isinstance(model, Experiment):
        if example is not None:
            raise UserError("--example: an Experiment is traced on its own first batch; leave --example out")
        return explain_experiment(model, spec, layers)
    if not isinstance(model, nn.Module):
        raise UserError(f"{spec} returned {described(model)}, not an nn.Module or an Experiment")
    if layers in ("hidden", "input") and example is None:
        raise UserError(
            f"--layers {layers} needs a forward pass: give --example SHAPE, or name an Experiment instead of a model"
        )
    try:
        return gradcent.explain(model, layers=layers, example=example)
    except ValueError as error:
        raise UserError(str(error)) from error


def explain_experiment(experiment: Any, spec: str, layers: str) -> gradcent.Plan:
    """Plan an Experiment's model on its first training batch."""
    from gradcent_lab.data.random_streams import seed_everything, seeded
    from gradcent_lab.errors import UserError
    from gradcent_lab.experiment import user
    from gradcent_lab.experiment.import_spec import one_line
    from gradcent_lab.run.example_plan import plan_experiment

    user.check(experiment, spec)
    with seeded(0, "explain"):
        seed_everything(0, "weights")
        try:
            return plan_experiment(experiment.model(), experiment, {"layers": layers})
        except UserError as error:
            raise UserError(f"{spec}: {error}") from error
        except Exception as error:
            raise UserError(f"{spec}: {one_line(error)}") from error


def read_shape(text: str) -> Any:
    """Return a random input of a shape such as 1,3,224,224."""
    import torch

    from gradcent_lab.errors import UserError

    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise UserError(f"--example {text}: write the shape of an input, for example 1,3,224,224")
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def load_model(spec: str) -> Any:
    """Build the model a `source:name` specification names, without downloading weights."""
    from gradcent_lab.errors import UserError
    from gradcent_lab.experiment.import_spec import call, find, need

    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise UserError(f"{spec!r} names no model; write torchvision:NAME, timm:NAME or module:function")
    if source == "torchvision":
        models = need("torchvision.models", "torchvision")
        if name not in models.list_models():
            raise UserError(f"torchvision has no model {name!r}{_close(name, models.list_models())}")
        return models.get_model(name, weights=None)
    if source == "timm":
        timm = need("timm", "timm")
        if not timm.is_model(name):
            raise UserError(f"timm has no model {name!r}{_close(name, timm.list_models())}")
        return timm.create_model(name, pretrained=False)
    from torch import nn

    from gradcent_lab.experiment.spec import Experiment

    found = find(spec)
    return found if isinstance(found, nn.Module | Experiment) else call(spec, found)


def _close(name: str, names: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""
