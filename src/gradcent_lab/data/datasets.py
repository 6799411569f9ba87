"""The known data sets: the folder of each below the data folder, its contents, where to get it.

The data folder is `--data` or the environment variable GRADCENT_DATA. Nothing is downloaded without `--download`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradcent_lab.errors import UserError


@dataclass(frozen=True)
class SetInfo:
    """One data set. `images` counts the complete set; it is checked when a run uses all of it."""

    title: str
    folders: tuple[str, ...]  # below the data folder; the first one that exists is used
    classes: int
    images: Mapping[str, int]
    where: str
    archive: tuple[str, str] | None = None  # URL and md5 of the archive that --download gets
    torchvision: str | None = None  # the class of torchvision.datasets that downloads it
    task: str = "classification"  # or "detection", read by gradcent_lab.detection
    system_copy: bool = False  # an operating system package may provide it outside the data folder

    @property
    def required(self) -> bool:
        """Whether the set must be in the data folder."""
        return bool(self.folders) and not self.system_copy


SETS: dict[str, SetInfo] = {
    "cifar100": SetInfo(
        "CIFAR-100",
        ("cifar-100-binary",),
        100,
        {"train": 50_000, "test": 10_000},
        "get cifar-100-binary.tar.gz from www.cs.toronto.edu/~kriz/cifar.html, or run with --download",
        archive=(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
        ),
    ),
    "cifar10": SetInfo(
        "CIFAR-10",
        ("cifar-10-batches-bin",),
        10,
        {"train": 50_000, "test": 10_000},
        "get cifar-10-binary.tar.gz from www.cs.toronto.edu/~kriz/cifar.html, or run with --download",
        archive=(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    "miniimagenet": SetInfo(
        "Mini-ImageNet",
        ("mini-imagenet",),
        100,
        {"train": 50_000, "test": 10_000},
        "make {train,test}/CLASS/ folders of the 84-pixel images (500 and 100 a class)",
    ),
    "imagenet": SetInfo(
        "ImageNet (ILSVRC 2012)",
        ("imagenet", "ILSVRC2012"),
        1000,
        {"train": 1_281_167, "test": 50_000},
        "get it from image-net.org and make {train,val}/CLASS/ folders",
    ),
    "aircraft": SetInfo(
        "FGVC Aircraft",
        ("fgvc-aircraft-2013b",),
        100,
        {"train": 6_667, "test": 3_333},
        "get fgvc-aircraft-2013b.tar.gz from www.robots.ox.ac.uk/~vgg/data, or run with --download",
        torchvision="FGVCAircraft",
    ),
    "cars": SetInfo(
        "Stanford Cars",
        ("stanford-cars", "stanford_cars"),
        196,
        {"train": 8_144, "test": 8_041},
        "make {train,test}/CLASS/ folders, or torchvision's stanford_cars layout",
    ),
    "dogs": SetInfo(
        "Stanford Dogs",
        ("stanford-dogs",),
        120,
        {"train": 12_000, "test": 8_580},
        "get images.tar and lists.tar from vision.stanford.edu/aditya86/ImageNetDogs into stanford-dogs/",
    ),
    "cub200": SetInfo(
        "CUB-200-2011",
        ("cub-200-2011", "CUB_200_2011"),
        200,
        {"train": 5_994, "test": 5_794},
        "get CUB_200_2011.tgz from www.vision.caltech.edu/datasets/cub_200_2011",
    ),
    "tinyimagenet": SetInfo(
        "Tiny-ImageNet-200",
        ("tiny-imagenet-200",),
        200,
        {"train": 100_000, "test": 10_000},
        "get tiny-imagenet-200.zip from cs231n.stanford.edu",
    ),
    "imagenette": SetInfo(
        "Imagenette",
        ("imagenette2-160", "imagenette2-320", "imagenette2"),
        10,
        {"train": 9_469, "test": 3_925},
        "get imagenette2-160.tgz from github.com/fastai/imagenette, or run with --download",
        torchvision="Imagenette",
    ),
    "fashionmnist": SetInfo(
        "Fashion-MNIST",
        ("FashionMNIST/raw", "fashion-mnist"),
        10,
        {"train": 60_000, "test": 10_000},
        "install the Debian package dataset-fashion-mnist, or run with --download",
        torchvision="FashionMNIST",
        system_copy=True,
    ),
    "coco": SetInfo(
        "COCO 2017",
        ("coco",),
        80,
        {"train": 118_287, "test": 5_000},
        "get train2017.zip, val2017.zip and annotations_trainval2017.zip from cocodataset.org into coco/",
        task="detection",
    ),
    "coco-mini": SetInfo(
        "COCO, 639 images",
        ("coco-mini",),
        80,
        {"train": 337, "test": 302},
        "make coco-mini/images/*.jpg and coco-mini/instances.json, every image with its coco_split",
        task="detection",
    ),
    "penn-fudan": SetInfo(
        "Penn-Fudan pedestrians",
        ("penn-fudan",),
        1,
        {"train": 128, "test": 42},
        "get PennFudanPed.zip from www.cis.upenn.edu/~jshi/ped_html and make penn-fudan/{images,masks}",
        task="detection",
    ),
    "balloon": SetInfo(
        "Balloons",
        ("balloon",),
        1,
        {"train": 61, "test": 13},
        "get balloon_dataset.zip from github.com/matterport/Mask_RCNN/releases, which has balloon/{train,val}",
        task="detection",
    ),
    "digits": SetInfo(
        "Handwritten digits",
        (),
        10,
        {"train": 1_437, "test": 360},
        "comes with scikit-learn: pip install scikit-learn",
    ),
}


def data_root(given: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the data folder: the one given, else GRADCENT_DATA, else None."""
    chosen = given or os.environ.get("GRADCENT_DATA")
    if not chosen:
        return None
    root = Path(chosen).expanduser()
    if not root.is_dir():
        raise UserError(f"the data folder {root} does not exist: set another with --data or GRADCENT_DATA")
    return root


def find(name: str, root: Path | None) -> Path | None:
    """Return the folder of a set, or None if it does not exist."""
    if root is None:
        return None
    return next((root / folder for folder in SETS[name].folders if (root / folder).is_dir()), None)


def place(name: str, root: Path | None) -> Path:
    """Return the folder of a set; raise an error that says where to get it if it does not exist."""
    info = SETS[name]
    folder = find(name, root)
    if folder is not None:
        return folder
    if root is None:
        raise UserError(
            f"{info.title} is needed: set the data folder with --data or GRADCENT_DATA; {info.where}"
        )
    raise UserError(f"{info.title} is not in {root} (expected {' or '.join(info.folders)}): {info.where}")
