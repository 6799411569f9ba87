"""Downloads, only when asked for: checked against the known md5 before being unpacked, unpacked safely."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import urllib.request
from pathlib import Path
from typing import IO

from gradcent_lab.data.datasets import SETS, find
from gradcent_lab.errors import UserError
from gradcent_lab.store.atomic_files import (
    disk_full,
    drop_abandoned,
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
    drop_abandoned(make_folder(root))  # what a killed download left: archives, half-unpacked folders
    if info.archive is not None:
        address, md5 = info.archive
        fetch(address, md5, root)
    elif info.torchvision is not None:
        _by_torchvision(info.torchvision, info.folders, root)
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
        except (OSError, http.client.HTTPException) as error:  # URLError and TimeoutError are OSErrors
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


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy in blocks; a connection that fails is not a disk that fails."""
    while True:
        try:
            block = source.read(1 << 20)
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"the download broke off ({error}): run the same command again") from error
        if not block:
            return
        target.write(block)


def _by_torchvision(kind: str, folders: tuple[str, ...], root: Path) -> None:
    """Let torchvision download and unpack in a temporary folder, then move the set to `root`.

    torchvision unpacks in place and takes any folder of the right name for the whole set.
    """
    from torchvision import datasets

    options = {"FGVCAircraft": {"split": "trainval"}, "Imagenette": {"split": "train", "size": "160px"}}
    temporary = temporary_path(root / "torchvision")
    try:
        temporary.mkdir()
        getattr(datasets, kind)(str(temporary), download=True, **options.get(kind, {}))
        for folder in folders:
            if (temporary / folder).is_dir():
                (root / folder).parent.mkdir(parents=True, exist_ok=True)
                (temporary / folder).rename(root / folder)
    except Exception as error:  # a broken connection or archive raises anything
        if disk_full(error):
            raise write_error(root, error) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"torchvision could not download {kind}: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
