"""`gradcent explain`: print the plan of a model named on the command line."""

from __future__ import annotations

import argparse
import json
from typing import Any


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "model",
        help="torchvision:resnet50, timm:vit_tiny_patch16_224, or module:function (file.py:function) that returns one",
    )
    parser.add_argument(
        "--layers", choices=("all", "conv", "linear"), default="all", help="which layers (default: all)"
    )
    parser.add_argument("--brief", action="store_true", help="print the totals only")
    parser.add_argument("--json", action="store_true", help="print plain data instead of the table")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    from torch import nn

    import gradcent
    from gradcent_lab.errors import UserError
    from gradcent_lab.experiment.import_spec import described

    model = load_model(args.model)
    if not isinstance(model, nn.Module):
        raise UserError(f"{args.model} returned {described(model)}, not an nn.Module")
    plan = gradcent.explain(model, layers=args.layers)
    if args.json:
        print(json.dumps({"totals": plan.totals(), "parameters": plan.rows()}, indent=1))
    else:
        print(plan.summary() if args.brief else plan)
    return 0


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

    found = find(spec)
    return found if isinstance(found, nn.Module) else call(spec, found)


def _close(name: str, names: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""
