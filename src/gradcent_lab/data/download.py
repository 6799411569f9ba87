"""Downloads, only when asked for: checked against the known md5 before being unpacked, unpacked safely."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from gradcent_lab.data.datasets import SETS, find
from gradcent_lab.errors import UserError
from gradcent_lab.store.atomic_files import (
    disk_full,
    make_folder,
    temporary_path,
    write_atomically,
    write_error,
)


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
    """Download a tar archive, check its md5 and unpack it below `root`.

    A folder appears under its final name only when it is unpacked completely, and a bad archive is deleted, so
    that the next attempt starts afresh.
    """
    archive = root / address.rsplit("/", 1)[1]
    if not archive.exists():
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                write_atomically(archive, lambda stream: _copy(answer, stream))
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise UserError(f"cannot download {address}: {error}") from error
    actual = _md5(archive)
    if actual != md5:
        archive.unlink()
        raise UserError(
            f"{archive} had md5 {actual}, not {md5}, and was deleted: run the same command to download it again"
        )
    unpack(archive, root)
    archive.unlink()


def unpack(archive: Path, root: Path) -> None:
    """Unpack into a temporary folder, then move what was in it to `root`."""
    temporary = temporary_path(root / "unpack")
    try:
        temporary.mkdir()
        with tarfile.open(archive) as tar:
            tar.extractall(temporary, filter="data")  # refuses absolute paths, links outside, devices
        for entry in sorted(temporary.iterdir()):
            if (root / entry.name).exists():
                raise UserError(f"{root / entry.name} exists already: delete or rename it and run again")
            entry.rename(root / entry.name)
    except UserError:
        raise
    except (
        Exception
    ) as error:  # a damaged archive raises anything: TarError, zlib.error, KeyError, ValueError
        if disk_full(error):
            raise write_error(root, error) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"cannot unpack {archive}: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _md5(path: Path) -> str:
    total = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def _copy(source: object, target: object) -> None:
    shutil.copyfileobj(source, target, 1 << 20)  # type: ignore[arg-type]


def _by_torchvision(kind: str, root: Path) -> None:
    from torchvision import datasets

    options = {"FGVCAircraft": {"split": "trainval"}, "Imagenette": {"split": "train", "size": "160px"}}
    try:
        getattr(datasets, kind)(str(root), download=True, **options.get(kind, {}))
    except (OSError, RuntimeError) as error:
        raise UserError(f"torchvision could not download {kind}: {error}") from error
