"""`gradcent doctor`: check packages, machine and data; say what to install where something is missing."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from gradcent_lab.errors import install_line

LAB = (
    "accelerate",
    "faster-coco-eval",
    "matplotlib",
    "numpy",
    "pillow",
    "rich",
    "safetensors",
    "scikit-learn",
    "scipy",
    "torchvision",
)
OPTIONAL = {
    "ray": "runs on a cluster: pip install ray",
    "tensorboard": "gradcent run --track tensorboard: pip install tensorboard",
    "wandb": "gradcent run --track wandb: pip install wandb",
    "mlflow": "gradcent run --track mlflow: pip install mlflow",
}
Line = tuple[str, str, str]  # state (ok, missing or note), name, text


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="data folder (default: GRADCENT_DATA)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("."),
        metavar="FOLDER",
        help="where runs are written (default: the current folder)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the checks; the exit status is 1 if something that the lab needs is missing."""
    bad = 0
    for title, lines in (
        ("packages", packages()),
        ("machine", machine(args.out)),
        ("data", data(args.data)),
    ):
        print(title)
        for state, what, text in lines:
            bad += state == "missing"
            print(f"  {state:<8} {what:<24} {text}".rstrip())
    return 1 if bad else 0


def packages() -> Iterator[Line]:
    """Yield the library, torch, the lab's extra and the optional packages."""
    yield "ok", "python", platform.python_version()
    for name in ("gradcent", "torch"):
        yield _package(name, f"pip install {name}", "note" if name == "gradcent" else "missing")
    for name in LAB:
        yield _package(name, install_line("gradcent[lab]"), "missing")
    for name, purpose in OPTIONAL.items():
        yield _package(name, purpose, "note")


def _package(name: str, purpose: str, otherwise: str) -> Line:
    try:
        return "ok", name, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return otherwise, name, f"not installed; {purpose}"


def machine(out: Path) -> Iterator[Line]:
    """Yield processors, GPUs, compiler and disk."""
    import torch

    yield "ok", "cores", f"{os.cpu_count()}, torch uses {torch.get_num_threads()}"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield ("ok", "GPUs", ", ".join(gpus)) if gpus else ("note", "GPUs", "none: use --scale small or smoke")
    yield from triton_kernels()
    compiler = shutil.which(os.environ.get("CC", "cc"))
    yield ("ok", "C compiler", compiler) if compiler else ("note", "C compiler", "none: no torch.compile")
    place = out
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 2**30
    yield ("ok" if free > 5 else "note"), "disk", f"{free:.0f} GiB free at {out}"
    if not os.access(place, os.W_OK):
        yield "missing", "disk", f"{place} is not writable: choose another folder with --out"


def triton_kernels() -> Iterator[Line]:
    """Yield whether the Triton kernels agree with the reference on each GPU, for each dtype."""
    import torch

    from gradcent.kernels import triton, triton_check
    from gradcent.kernels.triton_tasks import DTYPES

    if not triton.available():
        yield "note", "Triton kernels", triton.reason()
        return
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if triton.interpreted():
        devices.append(torch.device("cpu"))
    if not devices:
        yield "note", "Triton kernels", "not checked: no GPU"
    for device in devices:
        for dtype in DTYPES:
            result = triton_check.check(device, dtype)
            name = f"{result.device}, {str(dtype).removeprefix('torch.')}"
            if result.problem:
                yield (
                    "note",
                    "Triton kernels",
                    f"{name}: {result.problem}; steps use kernel='foreach'; please report this",
                )
            else:
                yield "ok", "Triton kernels", f"{name}: agree with the reference"


def data(given: Path | None) -> Iterator[Line]:
    """Yield the data sets, with the number of images of those present."""
    from gradcent_lab.data.datasets import SETS, data_root, find
    from gradcent_lab.errors import UserError

    try:
        root = data_root(given)
    except UserError as error:
        yield "missing", "data folder", str(error)
        return
    if root is None:
        yield "note", "data folder", "not set: set GRADCENT_DATA or pass --data"
    else:
        yield "ok", "data folder", str(root)
    for name, info in SETS.items():
        folder = find(name, root)
        if not info.folders:
            yield "ok", info.title, "comes with scikit-learn"
        elif folder is None:
            yield "note", info.title, f"not found; {info.where}"
        else:
            yield _counts(name, folder)


def _counts(name: str, folder: Path) -> Line:
    from gradcent_lab.data.cifar import FILES, record_size
    from gradcent_lab.data.datasets import SETS
    from gradcent_lab.data.folder_formats import samples
    from gradcent_lab.errors import UserError

    info = SETS[name]
    try:
        if name in FILES:
            counts = {
                split: sum((folder / file).stat().st_size for file in files) // record_size(name)
                for split, files in FILES[name].items()
            }
        elif name == "fashionmnist":
            return "ok", info.title, str(folder)
        elif info.task == "detection":
            from gradcent_lab.detection.sources import count_images

            counts = count_images(name, folder)
        else:
            counts = {split: len(files) for split, files in samples(name, folder)[0].items()}
    except (UserError, OSError) as error:
        return "missing", info.title, str(error)
    text = f"{counts['train']:,} training and {counts['test']:,} test images in {folder}"
    if counts == dict(info.images):
        return "ok", info.title, text
    whole = f"{info.images['train']:,} and {info.images['test']:,}"
    return "note", info.title, f"{text}; the complete set has {whole}"
