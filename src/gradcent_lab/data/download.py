"""Downloads, only when asked for: checked against the known md5 before being unpacked, unpacked safely."""

from __future__ import annotations

import hashlib
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from gradcent_lab.data.datasets import SETS, find
from gradcent_lab.errors import UserError
from gradcent_lab.store.atomic_files import make_folder, write_atomically


def download(name: str, root: Path) -> Path:
    """Fetch a set below `root` unless it is there; return its folder."""
    present = find(name, root)
    if present is not None:
        return present
    info = SETS[name]
    make_folder(root)
    if info.archive is not None:
        address, md5 = info.archive
        fetch(address, md5, root)
    elif info.torchvision is not None:
        _by_torchvision(info.torchvision, root)
    else:
        raise UserError(f"{info.title} cannot be downloaded by the lab: {info.where}")
    present = find(name, root)
    if present is None:
        raise UserError(f"the download of {info.title} did not give {root / info.folders[0]}")
    return present


def fetch(address: str, md5: str, root: Path) -> None:
    """Download a tar archive, check its md5 and unpack it below `root`."""
    archive = root / address.rsplit("/", 1)[1]
    if not archive.exists():
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                write_atomically(archive, lambda stream: _copy(answer, stream))
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise UserError(f"cannot download {address}: {error}") from error
    found = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    if found != md5:
        raise UserError(f"{archive} has md5 {found}, not {md5}: delete it and download again")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")  # refuses absolute paths, links outside, devices
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"cannot unpack {archive}: {error}") from error
    archive.unlink()


def _copy(source: object, target: object) -> None:
    import shutil

    shutil.copyfileobj(source, target, 1 << 20)  # type: ignore[misc, arg-type]


def _by_torchvision(kind: str, root: Path) -> None:
    from torchvision import datasets

    options = {"FGVCAircraft": {"split": "trainval"}, "Imagenette": {"split": "train", "size": "160px"}}
    try:
        getattr(datasets, kind)(str(root), download=True, **options.get(kind, {}))
    except (OSError, RuntimeError) as error:
        raise UserError(f"torchvision could not download {kind}: {error}") from error
