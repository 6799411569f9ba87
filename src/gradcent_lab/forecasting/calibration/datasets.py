"""Small data sets of the calibration: images, tables, text, sequences, fields and a graph.

Everything comes from scikit-learn, from Python's own manual, or from a formula, so nothing is downloaded. A
data set is split once, by a fixed seed, into training and test samples.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradcent_lab.data.python_manual import python_manual

SPLIT_SEED = 20_260  # the split is part of a data set; no result was looked at to choose it
TEXT_LENGTH = 24
GRAPH_NODES = 12
ALPHABET = "\n " + "".join(map(chr, range(33, 127)))


@dataclass(frozen=True)
class Split:
    """Training and test samples; `classes` is 0 for regression."""

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int


def _split(inputs: Tensor, targets: Tensor, classes: int, train: int) -> Split:
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(SPLIT_SEED))
    chosen, rest = order[:train], order[train : train + 600]
    return Split(inputs[chosen], targets[chosen], inputs[rest], targets[rest], classes)


def _standardized(values: Tensor) -> Tensor:
    return (values - values.mean(0)) / values.std(0).clamp_min(1e-6)


def _quantile_classes(values: Tensor, classes: int) -> Tensor:
    edges = torch.quantile(values, torch.linspace(0, 1, classes + 1)[1:-1])
    return torch.bucketize(values, edges)


@functools.cache
def digit_images() -> tuple[Tensor, Tensor]:
    """The 1,797 digits of scikit-learn as (1, 8, 8) images in [0, 1], and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16).unsqueeze(1)
    return images, torch.from_numpy(digits.target).long()


def digits(train: int = 800, *, centered: bool = True) -> Split:
    """Digit recognition; pixels are shifted and scaled to mean 0 and deviation 1 over the whole set."""
    images, labels = digit_images()
    if centered:
        images = (images - images.mean()) / images.std()
    return _split(images, labels, 10, train)


def brightness(classes: int = 5) -> Split:
    """The label is the quantile of the image's brightness: Theorem 4.1 says GC at the input layer hides it."""
    images, _ = digit_images()
    labels = _quantile_classes(images.mean((1, 2, 3)), classes)
    return _split((images - images.mean()) / images.std(), labels, classes, 800)


def ink() -> Split:
    """Regression of the amount of ink."""
    images, _ = digit_images()
    targets = _standardized(images.sum((1, 2, 3)).unsqueeze(1))
    return _split((images - images.mean()) / images.std(), targets, 0, 800)


def denoising() -> Split:
    """A noisy digit in, the clean digit out, at 16 × 16 pixels."""
    images, _ = digit_images()
    clean = torch.nn.functional.interpolate(images, size=16, mode="bilinear")
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(SPLIT_SEED))
    return _split(clean + 0.4 * noise, clean, 0, 600)


def table(name: str) -> Split:
    """A table of scikit-learn, columns standardized; "mean" is random columns whose mean is the target."""
    from sklearn import datasets

    if name in ("breast_cancer", "wine"):
        data = getattr(datasets, f"load_{name}")()
        inputs = _standardized(torch.from_numpy(data.data.astype(np.float32)))
        return _split(
            inputs, torch.from_numpy(data.target).long(), int(data.target.max()) + 1, len(inputs) * 7 // 10
        )
    if name == "diabetes":
        data = datasets.load_diabetes()
        inputs = _standardized(torch.from_numpy(data.data.astype(np.float32)))
        targets = _standardized(torch.from_numpy(data.target.astype(np.float32)).unsqueeze(1))
        return _split(inputs, targets, 0, 300)
    if name == "friedman":
        columns, values = datasets.make_friedman1(1500, n_features=10, noise=0.5, random_state=SPLIT_SEED)
        inputs = _standardized(torch.from_numpy(columns.astype(np.float32)))
        return _split(inputs, _standardized(torch.from_numpy(values.astype(np.float32)).unsqueeze(1)), 0, 900)
    if name == "mean":
        generator = torch.Generator().manual_seed(SPLIT_SEED)
        inputs = torch.randn(1500, 16, generator=generator)
        return _split(inputs, _standardized(inputs.mean(1, keepdim=True).tanh()), 0, 900)
    raise ValueError(f"no table is called {name!r}")


@functools.cache
def _numbers(source: str) -> Tensor:
    known = {character: number for number, character in enumerate(ALPHABET)}
    return torch.tensor([known[character] for character in source if character in known])


def text(length: int = TEXT_LENGTH, *, train: int = 3000, source: str | None = None) -> Split:
    """Windows of a text, by default the start of Python's manual; the target of every character is the next one."""
    numbers = _numbers(python_manual()[:200_000] if source is None else source)
    count = len(numbers) // (length + 1)
    rows = numbers[: count * (length + 1)].view(count, length + 1)
    return _split(rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), len(ALPHABET), train)


def rows_of_digits() -> Split:
    """A digit as a sequence of its 8 rows."""
    split = digits()
    return Split(
        split.train_inputs.squeeze(1),
        split.train_targets,
        split.test_inputs.squeeze(1),
        split.test_targets,
        split.classes,
    )


def adding() -> Split:
    """The adding problem: two of 12 numbers are marked, the target is their sum."""
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    numbers = torch.rand(1800, 12, generator=generator)
    marks = torch.zeros(1800, 12)
    places = torch.rand(1800, 12, generator=generator).topk(2, 1).indices
    marks.scatter_(1, places, 1.0)
    targets = _standardized((numbers * marks).sum(1, keepdim=True))
    return _split(torch.stack([numbers - 0.5, marks], 2), targets, 0, 1200)


def flow() -> Split:
    """Velocity of potential flow around a cylinder from position, radius and inflow angle (7 conditions)."""
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    count = 2000
    radius = 0.3 + 0.4 * torch.rand(count, generator=generator)
    angle = 0.5 * (torch.rand(count, generator=generator) - 0.5)
    speed = 0.5 + torch.rand(count, generator=generator)
    r = radius * (1.05 + 2 * torch.rand(count, generator=generator))
    theta = 2 * math.pi * torch.rand(count, generator=generator)
    relative = theta - angle
    radial = speed * (1 - (radius / r) ** 2) * relative.cos()
    around = -speed * (1 + (radius / r) ** 2) * relative.sin()
    velocity = torch.stack(
        [radial * theta.cos() - around * theta.sin(), radial * theta.sin() + around * theta.cos()], 1
    )
    inputs = torch.stack([r * theta.cos(), r * theta.sin(), radius, angle, speed, r, (radius / r) ** 2], 1)
    return _split(inputs, _standardized(velocity), 0, 1200)


def image_field() -> Split:
    """Grey values of one enlarged digit from pixel coordinates in [−1, 1]."""
    images, _ = digit_images()
    picture = torch.nn.functional.interpolate(images[:1], size=40, mode="bicubic")[0, 0]
    line = torch.linspace(-1, 1, 40)
    inputs = torch.cartesian_prod(line, line)
    return _split(inputs, _standardized(picture.reshape(-1, 1)), 0, 1000)


def graph_nodes() -> Split:
    """Noisy node features of a random block graph, smoothed over neighbours; the target is the node's block.

    The smoothing is done here once, so that a sample is a node and its neighbourhood averages (a simplified
    graph convolution of three hops).
    """
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    count, blocks, width = 1200, 6, 8
    labels = torch.randint(blocks, (count,), generator=generator)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    chance = torch.where(same, 0.02, 0.004)
    upper = torch.rand(count, count, generator=generator).triu(1) > 1 - chance.triu(1)
    links = (upper | upper.T).float() + torch.eye(count)
    scale = links.sum(1).rsqrt()
    smooth = scale.unsqueeze(1) * links * scale.unsqueeze(0)
    features = torch.randn(blocks, width, generator=generator)[labels]
    features = features + 1.5 * torch.randn(count, width, generator=generator)
    hops = [features]
    for _ in range(2):
        hops.append(smooth @ hops[-1])
    return _split(torch.cat(hops, 1), labels, blocks, 700)


def small_graphs() -> Split:
    """Graphs of 12 nodes: a ring, two cliques or random links; a sample is (normalized links | node features).

    The features are random numbers and the degree of the node, so the label is a property of the links alone.
    """
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    count, size = 1500, GRAPH_NODES
    labels = torch.randint(3, (count,), generator=generator)
    place = torch.arange(size)
    distance = (place.unsqueeze(0) - place.unsqueeze(1)).abs()
    ring = (torch.minimum(distance, size - distance) <= 2).float()
    cliques = (place.unsqueeze(0) // (size // 2) == place.unsqueeze(1) // (size // 2)).float()
    chances = torch.stack([0.9 * ring, 0.75 * cliques, torch.full((size, size), 0.35)])[labels]
    upper = (torch.rand(count, size, size, generator=generator) < chances).triu(1)
    links = (upper | upper.transpose(1, 2)).float() + torch.eye(size)
    order = torch.rand(count, size, generator=generator).argsort(1)  # so that positions say nothing
    links = links.gather(1, order.unsqueeze(2).expand(-1, -1, size))
    links = links.gather(2, order.unsqueeze(1).expand(-1, size, -1))
    degree = links.sum(2, keepdim=True)
    features = torch.cat([torch.randn(count, size, 5, generator=generator), degree - degree.mean()], 2)
    smooth = degree.rsqrt() * links * degree.rsqrt().transpose(1, 2)
    return _split(torch.cat([smooth, features], 2), labels, 3, 900)
