"""`gradcent compare module:function`: does GC help your own model? Paired runs, an interval, a verdict."""

from __future__ import annotations

import argparse
from pathlib import Path

from gradcent_lab.commands.arguments import add_checkpoint_seconds
from gradcent_lab.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "docs/compare.md explains what the function returns; examples/compare_*.py are complete."
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        nargs="?",
        help="or FILE.py:FUNCTION; an Experiment, or a function that returns one",
    )
    parser.add_argument("--seeds", type=int, default=None, metavar="N", help="number of pairs (default 5)")
    parser.add_argument("--epochs", type=int, metavar="N", help="instead of the experiment's own")
    parser.add_argument("--optimizer", metavar="NAME", help="of torch.optim: AdamW, or 'SGD(momentum=0.9)'")
    parser.add_argument("--lr", type=float, metavar="RATE", help="instead of the experiment's own")
    parser.add_argument("--at", choices=("gradient", "update"), default="gradient", help="where GC acts")
    parser.add_argument(
        "--layers",
        choices=("all", "conv", "linear", "hidden", "input"),
        default=None,
        help="which layers (default all)",
    )
    parser.add_argument(
        "--arms",
        metavar="off,NAME,…",
        help="compare several choices of layers at once: off and some of all, conv, linear, hidden, input",
    )
    parser.add_argument(
        "--decay", choices=("auto", "coupled", "decoupled"), default="auto", help="kind of decay"
    )
    parser.add_argument(
        "--margin",
        type=float,
        metavar="X",
        help="a difference below this does not matter (default: 1 point of a percentage, else 2 %% of the mean)",
    )
    parser.add_argument(
        "--target",
        type=float,
        metavar="X",
        help="measure the time to this value (default: from the arm without GC)",
    )
    parser.add_argument(
        "--recalibrate-bn",
        action="store_true",
        help="re-estimate BatchNorm statistics before every evaluation",
    )
    stopping = parser.add_argument_group("stopping")
    stopping.add_argument(
        "--until-decided",
        action="store_true",
        help="add pairs until the answer is clear, with valid error rates",
    )
    stopping.add_argument(
        "--max-seeds", type=int, metavar="N", help="most pairs with --until-decided (default 20)"
    )
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument(
        "--tune",
        action="append",
        default=[],
        metavar="NAME=V,V,…",
        help="give both arms the same grid on held-out training data; may be repeated",
    )
    tuning.add_argument(
        "--tune-seeds", type=int, default=2, metavar="N", help="runs of an arm per grid point (default 2)"
    )
    script = parser.add_argument_group("an existing script")
    script.add_argument(
        "--command",
        dest="script",
        metavar="COMMAND",
        help="run this instead: 'python train.py --seed {seed} {gc}'",
    )
    script.add_argument(
        "--gc-on", default="--gc", metavar="TEXT", help="what {gc} becomes with GC (default --gc)"
    )
    script.add_argument(
        "--gc-off", default="", metavar="TEXT", help="what {gc} becomes without (default nothing)"
    )
    script.add_argument(
        "--metric",
        default="metric",
        metavar="KEY",
        help="key of the JSON lines that it prints (default metric)",
    )
    script.add_argument(
        "--metric-file", metavar="PATH", help="read the JSON lines from this file ({seed} and {arm})"
    )
    script.add_argument("--lower-is-better", action="store_true", help="the metric is a loss or an error")
    parser.add_argument(
        "--out", type=Path, default=Path("gradcent-compare"), help="folder for what it writes"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    parser.add_argument(
        "--track", action="append", default=[], metavar="NAME", help="log to a tracker of accelerate"
    )
    add_checkpoint_seconds(parser)
    parser.add_argument("--fresh", action="store_true", help="redo finished runs instead of using them again")


def run(args: argparse.Namespace) -> int:
    """Run the comparison."""
    from gradcent_lab.experiment.import_spec import need

    for package in ("accelerate", "matplotlib", "rich", "scipy"):
        need(package, "'gradcent[lab]'")
    check(args)
    if args.script is not None:
        from gradcent_lab.compare.script_session import compare_script

        return compare_script(args)
    from gradcent_lab.compare.session import compare_experiment

    return compare_experiment(args)


def check(args: argparse.Namespace) -> None:
    """Refuse options that cannot be right, before anything is imported or run."""
    if (args.function is None) == (args.script is None):
        raise UserError("give either MODULE:FUNCTION or --command")
    for name in ("seeds", "epochs", "workers", "max_seeds", "tune_seeds"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: give 1 or more")
    if args.lr is not None and not args.lr > 0:
        raise UserError(f"--lr {args.lr:g}: give a number above 0")
    if args.margin is not None and not args.margin > 0:
        raise UserError(f"--margin {args.margin:g}: give a number above 0, in the metric's unit")
    if args.until_decided and args.seeds is not None:
        raise UserError("--until-decided chooses the number of pairs: use --max-seeds instead of --seeds")
    if args.max_seeds is not None and not args.until_decided:
        raise UserError("--max-seeds limits --until-decided: give both, or --seeds alone")
    if args.max_seeds is not None and args.max_seeds < 3:
        raise UserError(f"--max-seeds {args.max_seeds}: the rule needs 3 pairs or more")
    if args.arms is not None:
        from gradcent_lab.compare.options import parse_arms

        if args.script is not None:
            raise UserError("--arms needs an Experiment: a script of your own chooses its own layers")
        if args.layers is not None:
            raise UserError("--layers and --arms exclude each other: name the layers among the arms")
        parse_arms(args.arms)
    args.layers = args.layers or "all"
    if args.tune:
        from gradcent_lab.analysis.tuning import parse_grid

        if args.script is not None:
            raise UserError(
                "--tune needs an Experiment: a script of your own chooses its own hyper-parameters"
            )
        if "lr" in parse_grid(args.tune) and args.lr is not None:
            raise UserError("--lr and --tune lr exclude each other")
    args.seeds = 5 if args.seeds is None else args.seeds
    args.max_seeds = 20 if args.max_seeds is None else args.max_seeds
