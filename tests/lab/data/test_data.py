"""Data sets: read as they are laid out, checked, and refused in one line where they are not right."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import make_sets
import numpy as np
import pytest
import torch
import toy
from PIL import Image

from gradcent_lab.data import SETS, data_root, open_set
from gradcent_lab.data import datasets as catalogue
from gradcent_lab.data import download as downloads
from gradcent_lab.data.folder_formats import samples
from gradcent_lab.data.memory import _load
from gradcent_lab.data.tensors import TensorImages, balanced
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.scheduler import run_pairs
from gradcent_lab.store import process_identity

REAL = os.environ.get("GRADCENT_DATA")


def needs(name):
    there = REAL and catalogue.find(name, Path(REAL)) is not None
    return pytest.mark.skipif(not there, reason=f"{name} is not under GRADCENT_DATA")


@needs("cifar100")
def test_real_cifar100():
    train, test, classes = open_set({"set": "cifar100"}, Path(REAL))
    assert (len(train), len(test), classes) == (50_000, 10_000, 100)
    means = train.images.view(-1, 3).float().mean(0) / 255
    assert torch.allclose(means, torch.tensor([0.5071, 0.4865, 0.4409]), atol=1e-4)
    assert torch.bincount(train.labels).tolist() == [500] * 100
    assert torch.bincount(test.labels).tolist() == [100] * 100


@needs("cub200")
def test_real_cub_has_the_counts_of_table_6():
    found, classes = samples("cub200", catalogue.find("cub200", Path(REAL)))
    assert (classes, len(found["train"]), len(found["test"])) == (200, 5_994, 5_794)


@needs("miniimagenet")
def test_real_miniimagenet_in_memory_and_from_disk():
    spec = {"set": "miniimagenet", "size": 32, "train": 100, "eval": 100, "memory": True}
    train, test, classes = open_set(spec, Path(REAL))
    assert classes == 100
    assert sorted(train.labels.tolist()) == list(range(100)) == sorted(test.labels.tolist())
    lazy, _, _ = open_set({**spec, "memory": False}, Path(REAL))
    assert lazy[5][0].shape == train[5][0].shape == (3, 32, 32)
    assert float((lazy[5][0] - train[5][0]).abs().mean()) < 0.1  # the same picture, resized twice
    with pytest.raises(UserError, match=r"has 10,000 train images, not 50,000: .* smaller --scale"):
        open_set({"set": "miniimagenet", "size": 32}, Path(REAL))


@pytest.mark.parametrize("name", ["cub200", "aircraft", "dogs", "cars", "tinyimagenet"])
def test_official_layouts(tmp_path, name):
    getattr(make_sets, name)(tmp_path / SETS[name].folders[0])
    spec = {
        "set": name,
        "size": 16,
        "train": 12,
        "eval": 12,
        "memory": True,
        "augment": "crop-flip",
        "resize": 20,
    }
    train, test, classes = open_set(spec, tmp_path)
    assert (len(train), len(test), classes) == (12, 12, 2)
    assert torch.bincount(train.labels).tolist() == [6, 6]
    assert train[0][0].shape == test[0][0].shape == (3, 16, 16)
    with pytest.raises(UserError, match="smaller --scale"):
        open_set({**spec, "train": None}, tmp_path)


@pytest.mark.parametrize(
    "augment", ["pad-crop-flip", "resized-crop-flip", "crop-flip", "centre-crop-flip", "none"]
)
def test_any_folder_from_disk(tmp_path, augment):
    make_sets.class_folders(tmp_path / "mine", test_name="val")
    spec = {"set": "folder", "path": str(tmp_path / "mine"), "size": 24, "resize": 30, "augment": augment}
    train, test, classes = open_set(spec, None)
    assert (len(train), len(test), classes) == (24, 16, 4)
    assert train[0][0].shape == test[0][0].shape == (3, 24, 24)
    assert train.files[6][1] == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_corrupt_image_is_named_in_one_line(tmp_path, workers):
    make_sets.class_folders(tmp_path / "mine")
    (tmp_path / "mine" / "train" / "class2" / "3.png").write_bytes(b"\x89PNG rubbish")
    spec = {"set": "folder", "path": str(tmp_path / "mine"), "size": 8}
    train, test, _ = open_set(spec, None)
    experiment = replace(
        toy.experiment(),
        train_data=train,
        eval_data=test,
        model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4)),
        settings={"name": "folder"},
        batch_size=8,
    )
    with pytest.raises(UserError, match=r"class2/3\.png cannot be read as an image") as error:
        run_pairs(experiment, [OFF], [0], tmp_path / "runs", options=Options(loader_workers=workers))
    assert "\n" not in str(error.value)


def test_digits_need_no_folder():
    train, test, classes = open_set({"set": "digits"}, None)
    assert (len(train), len(test), classes) == (1_437, 360, 10)
    assert train[0][0].shape == (1, 8, 8)


def test_fashion_mnist_files(tmp_path, monkeypatch):
    folder = tmp_path / "fashion-mnist"
    for prefix, count in (("train", 30), ("t10k", 20)):
        make_sets.idx(folder / f"{prefix}-images-idx3-ubyte", np.zeros((count, 28, 28)))
        make_sets.idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(count) % 10)
    info = replace(SETS["fashionmnist"], images={"train": 30, "test": 20})
    monkeypatch.setitem(catalogue.SETS, "fashionmnist", info)
    monkeypatch.setattr("gradcent_lab.data.memory.DEBIAN", tmp_path / "none")
    train, test, _ = open_set({"set": "fashionmnist", "train": 10}, tmp_path)
    assert (len(train), len(test)) == (10, 20)
    _load.cache_clear()
    path = folder / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="t10k-images-idx3-ubyte is damaged"):
        open_set({"set": "fashionmnist"}, tmp_path)


def test_cifar_files_are_checked(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    make_sets.cifar100(folder, 200, 100)
    with pytest.raises(UserError, match="has 200 train images, not 50000"):
        open_set({"set": "cifar100"}, tmp_path)
    (folder / "train.bin").write_bytes((folder / "train.bin").read_bytes()[:-5])
    with pytest.raises(UserError, match=r"train\.bin is truncated"):
        open_set({"set": "cifar100"}, tmp_path)
    (folder / "train.bin").unlink()
    with pytest.raises(UserError, match=r"train\.bin is missing: get cifar-100-binary"):
        open_set({"set": "cifar100"}, tmp_path)


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"ImageNet .* is not in .* get it from image-net\.org"):
        open_set({"set": "imagenet", "size": 8}, tmp_path)
    with pytest.raises(UserError, match="with --data or GRADCENT_DATA"):
        open_set({"set": "cub200", "size": 8}, None)
    with pytest.raises(UserError, match="unknown data set 'mnist'"):
        open_set({"set": "mnist"}, None)
    monkeypatch.setenv("GRADCENT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="does not exist"):
        data_root()
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    with pytest.raises(UserError, match="has train/ but no test/ or val/"):
        open_set({"set": "imagenet", "size": 8}, tmp_path)


def test_balanced_choice():
    labels = torch.arange(60) % 6
    chosen = balanced(labels, 15)
    assert torch.bincount(labels[chosen]).tolist() == [3, 3, 3, 2, 2, 2]
    assert torch.equal(chosen, chosen.sort().values)
    assert torch.equal(chosen, balanced(labels, 15))
    assert len(balanced(labels, None)) == 60


def _archive(folder, names):
    path = folder / "set.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    return path, hashlib.md5(path.read_bytes()).hexdigest()


def test_downloads_are_checked_and_unpacked_safely(tmp_path, monkeypatch):
    source, root = tmp_path / "server", tmp_path / "data"
    source.mkdir()
    path, md5 = _archive(source, ["cifar-10-batches-bin/test_batch.bin"])
    info = replace(SETS["cifar10"], archive=(path.as_uri(), md5))
    monkeypatch.setitem(catalogue.SETS, "cifar10", info)
    assert downloads.download("cifar10", root) == root / "cifar-10-batches-bin"
    assert sorted(p.name for p in root.iterdir()) == ["cifar-10-batches-bin"]
    with pytest.raises(UserError, match=r"md5 .* not 0000, and was deleted"):
        downloads.fetch(path.as_uri(), "0000", root)
    assert not (root / path.name).exists()  # so that the next attempt downloads it again
    evil, md5 = _archive(source, ["half/first.txt", "../outside.txt"])
    with pytest.raises(UserError, match="cannot unpack"):
        downloads.fetch(evil.as_uri(), md5, root)
    assert not (tmp_path / "outside.txt").exists()
    assert not (root / "half").exists()  # a half-unpacked folder would count as present
    (root / evil.name).unlink()
    with pytest.raises(UserError, match="cannot download"):
        downloads.fetch((tmp_path / "none.tar.gz").as_uri(), md5, root)
    with pytest.raises(UserError, match="cannot be downloaded by the lab"):
        downloads.download("imagenet", root)


def test_what_a_killed_download_left_is_swept(tmp_path, monkeypatch):
    """An archive and a folder under temporary names of a dead process go; those of a living one and the user's stay."""
    source, root = tmp_path / "server", tmp_path / "data"
    source.mkdir()
    root.mkdir()
    path, md5 = _archive(source, ["cifar-10-batches-bin/test_batch.bin"])
    info = replace(SETS["cifar10"], archive=(path.as_uri(), md5))
    monkeypatch.setitem(catalogue.SETS, "cifar10", info)
    tag = process_identity.tag()
    dead, foreign = tag.rpartition("-")[0] + "-1", "00000000" + tag[8:]
    names = {}
    for number, owner in enumerate((dead, tag, foreign)):
        (root / f".unpack.{owner}.0000000{number}.tmp" / "cifar-10-batches-bin").mkdir(parents=True)
        (root / f".set.tar.gz.{owner}.0000000{number}.tmp").write_text("half")
        names[owner] = {f".unpack.{owner}.0000000{number}.tmp", f".set.tar.gz.{owner}.0000000{number}.tmp"}
    (root / ".notes.tmp").write_text("the user's")
    for entry in root.iterdir():
        os.utime(entry, (1, 1))
    downloads.download("cifar10", root)
    left = {entry.name for entry in root.iterdir()}
    assert left == names[tag] | {".notes.tmp", "cifar-10-batches-bin"}


@pytest.mark.parametrize("outcome", ["whole", "killed", "broken", "full"])
def test_torchvisions_downloads_appear_whole_or_not_at_all(tmp_path, monkeypatch, outcome):
    """torchvision unpacks in place and believes any folder of the right name."""
    import torchvision

    def download(root, **_):
        folder = Path(root) / SETS["aircraft"].folders[0]
        folder.mkdir()
        (folder / "first.jpg").write_text("")
        if outcome == "killed":
            raise KeyboardInterrupt
        if outcome == "broken":
            raise EOFError("Compressed file ended\nbefore the end-of-stream marker")
        if outcome == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        (folder / "last.jpg").write_text("")

    monkeypatch.setattr(torchvision.datasets, "FGVCAircraft", download)
    root = tmp_path / "data"
    if outcome == "whole":
        place = downloads.download("aircraft", root)
        assert sorted(p.name for p in place.iterdir()) == ["first.jpg", "last.jpg"]
        assert list(root.iterdir()) == [place]
        return
    words = {
        "broken": "torchvision could not download FGVCAircraft: Compressed file",
        "full": "no space left",
    }
    with pytest.raises(
        KeyboardInterrupt if outcome == "killed" else UserError, match=words.get(outcome)
    ) as error:
        downloads.download("aircraft", root)
    assert "\n" not in str(error.value)
    assert catalogue.find("aircraft", root) is None
    assert list(root.iterdir()) == []


def test_a_connection_that_breaks_off_is_not_a_disk_error(tmp_path, monkeypatch):
    class Broken:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def read(self, _):
            raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", lambda *_, **__: Broken())
    with pytest.raises(UserError, match=r"the download broke off \(.*reset by peer\): run the same command"):
        downloads.fetch("http://example.org/set.tar.gz", "0", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_released_fine_grained_pipeline_crops_the_centre_and_flips():
    """Centre cropped in training too, flipped at random, in memory."""
    images = torch.arange(2 * 8 * 8 * 3, dtype=torch.int64).remainder(255).to(torch.uint8).view(2, 8, 8, 3)
    made = TensorImages(
        images, torch.zeros(2), (0, 0, 0), (1, 1, 1), crop=4, flip=True, random_crop=False, train=True
    )
    draws = torch.tensor([[0.9, 0.1, 0.9], [0.0, 0.5, 0.1]])  # row, column, flip below one half
    taken = made.take(torch.tensor([0, 1]), draws)[0]
    centre = images[:, 2:6, 2:6].permute(0, 3, 1, 2) / 255
    assert torch.allclose(taken[0], centre[0])
    assert torch.allclose(taken[1], centre[1].flip(-1))


@pytest.mark.parametrize("memory", [False, True])
def test_the_released_pipeline_resizes_the_short_side(tmp_path, memory):
    """The same from disk and in memory: a wide image keeps its proportions, and its left and right ends are cut off."""
    ramp = np.broadcast_to(np.linspace(0, 255, 60), (40, 60)) + np.linspace(0, 40, 40)[:, None]
    pixels = np.stack([ramp, 255 - ramp, ramp / 2], axis=-1).clip(0, 255).astype(np.uint8)
    for split in ("train", "test"):
        path = tmp_path / split / "wide" / "0.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels).save(path)
    spec = {"set": "folder", "path": str(tmp_path), "size": 16, "resize": 20, "normalize": "half"}
    released = {"square": False, "augment": "centre-crop-flip", "memory": memory}
    train, test, _ = open_set({**spec, **released}, None)
    resized = Image.fromarray(pixels).resize((30, 20), Image.Resampling.BILINEAR).crop((7, 2, 23, 18))
    centre = (torch.from_numpy(np.asarray(resized).copy()).permute(2, 0, 1) / 255 - 0.5) / 0.5
    close = {"atol": 2.1 * 2 / 255, "rtol": 0}  # two grey levels: the bounds of the window are rounded
    assert torch.allclose(test[0][0], centre, **close)
    torch.manual_seed(0)
    seen = set()
    for _ in range(20):
        image = train[0][0]
        mirrored = not torch.allclose(image, centre, **close)
        assert torch.allclose(image, centre.flip(-1) if mirrored else centre, **close)
        seen.add(mirrored)
    assert seen == {False, True}
    squeezed = open_set({**spec, **released, "square": True}, None)[1][0][0]
    assert not torch.allclose(squeezed, centre, atol=0.2)
