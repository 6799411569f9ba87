"""`gradcent bench`: measure the cost of GC on this machine; print a table of ratios, write a chart and a JSON file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--out", type=Path, default=Path("gradcent-bench"), help="folder for bench.json and bench.png"
    )
    parser.add_argument(
        "--lists", nargs="+", metavar="LIST", help="parameter lists to measure (default: all)"
    )
    parser.add_argument(
        "--optimizers", nargs="+", metavar="NAME", help="optimizers to measure (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=40, help="most rounds per measurement (default: 40)")
    parser.add_argument(
        "--largest",
        type=int,
        help="parameters of the largest model (default: 2^30 if memory allows, or 2^28)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where to measure the steps (default: cpu)"
    )
    parser.add_argument("--threads", type=int, help="threads, for torch and for gradcent (default: torch's)")
    parser.add_argument(
        "--quick", action="store_true", help="ResNet-50 and the small tensors, SGDM and AdamW only"
    )
    parser.add_argument(
        "--targets", action="store_true", help="print which of the project's targets are reached"
    )


def run(args: argparse.Namespace) -> int:
    """Measure the steps, print the table, write the files."""
    import torch

    from gradcent_lab.bench import measurements, report
    from gradcent_lab.bench.implementations import OPTIMIZERS
    from gradcent_lab.bench.parameter_lists import LISTS
    from gradcent_lab.errors import UserError
    from gradcent_lab.store.atomic_files import check_writable, make_folder, write_text

    if args.threads:
        torch.set_num_threads(args.threads)
    lists = args.lists or (["resnet50", "2000x32x32"] if args.quick else list(LISTS))
    optimizers = args.optimizers or (["SGDM", "AdamW"] if args.quick else list(OPTIMIZERS))
    for chosen, known in ((lists, LISTS), (optimizers, OPTIMIZERS)):
        for name in chosen:
            if name not in known:
                raise UserError(f"{name!r} is not one of {', '.join(known)}")
    if args.rounds < 5:
        raise UserError(f"--rounds {args.rounds} is too few for a median; take 5 or more")
    if args.device == "cuda":
        return _run_cuda(args, lists, optimizers)
    path = make_folder(args.out) / "bench.json"
    for file in (path, args.out / "bench.png"):
        check_writable(file)  # now, not after an hour of measuring
    document: dict[str, Any] = {"machine": measurements.machine()}
    print(report.heading(measurements.machine()))
    steps = []
    for name in lists:
        for optimizer in optimizers:
            steps.append(measurements.steps(name, optimizer, args.rounds))
            print(report.step(steps[-1]), flush=True)
    document["steps"] = steps
    document["centralize"] = [measurements.centralize_pass(name, args.rounds) for name in lists]
    print(report.passes(document["centralize"]), flush=True)
    document["training_step"] = measurements.training_step(args.rounds)
    print(report.training(document["training_step"]), flush=True)
    if not args.quick:
        document["growth"] = measurements.growth(min(args.rounds, 7), args.largest or measurements.largest())
        print(report.growth(document["growth"]), flush=True)
    document["targets"] = report.targets(document)
    if args.targets:
        print(report.verdict(document["targets"]))
    write_text(path, json.dumps(document, indent=1) + "\n")
    drawn = report.draw(document, args.out / "bench.png")
    print(f"wrote {args.out / 'bench.json'}" + (f" and {args.out / 'bench.png'}" if drawn else ""))
    return 0


def _run_cuda(args: argparse.Namespace, lists: list[str], optimizers: list[str]) -> int:
    from gradcent_lab.bench import gpu
    from gradcent_lab.store.atomic_files import check_writable, make_folder, write_text

    path = make_folder(args.out) / "bench-cuda.json"
    check_writable(path)
    write_text(path, json.dumps(gpu.run(lists, optimizers, args.rounds), indent=1) + "\n")
    print(f"wrote {path}")
    return 0
