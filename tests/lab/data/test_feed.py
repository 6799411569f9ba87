"""Batches: the same for every arm, after a restart, and for any number of processes."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset
from toy import Noisy

from gradcent_lab.data.batches import Feed
from gradcent_lab.data.tensors import TensorImages
from gradcent_lab.errors import UserError


def images(n=23, train=True):
    pixels = torch.arange(n * 8 * 8 * 3).remainder(256).view(n, 8, 8, 3).to(torch.uint8)
    return TensorImages(pixels, torch.arange(n), (0.5,) * 3, (0.2,) * 3, padding=1, flip=True, train=train)


def all_of(feed, epoch, start=0):
    return [(b.inputs.clone(), b.targets.clone()) for b in feed.epoch(epoch, start)]


def same(one, two):
    return len(one) == len(two) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(one, two, strict=True)
    )


class Drawn(Noisy):
    """Draws from NumPy, from Python, or from generators of its own, instead of from torch."""

    def __init__(self, kind):
        super().__init__(23, 0)
        draws = {
            "numpy": lambda: np.random.normal(),
            "python": lambda: random.gauss(0.0, 1.0),
            "own numpy": np.random.default_rng(3),
            "own state": np.random.RandomState(3),
            "own python": random.Random(3),
            "own torch": torch.Generator(),
        }
        self.source = draws[kind]

    def __getitem__(self, index):
        if isinstance(self.source, torch.Generator):
            draw = float(torch.randn((), generator=self.source))
        else:
            source = getattr(self.source, "normal", None) or getattr(self.source, "gauss", self.source)
            draw = source(0.0, 1.0) if source is not self.source else source()
        return self.x[index] + draw, self.y[index]


class Endless:
    """An iterable of batches with a generator of its own."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        for _ in range(5):
            yield torch.from_numpy(self.rng.normal(size=(4, 1, 8, 8))), torch.zeros(4)


def sampled(batched):
    data = Noisy(23, 0)
    sampler = RandomSampler(data, generator=torch.Generator())
    if batched:
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 4, False))
    return DataLoader(data, 4, sampler=sampler)


KINDS = ("numpy", "python", "own numpy", "own state", "own python", "own torch")
SOURCES = {
    "sampler's generator": lambda: sampled(False),
    "batch sampler's generator": lambda: sampled(True),
    "iterable's generator": Endless,
    **{f"dataset, {kind}": partial(Drawn, kind) for kind in KINDS},
    **{f"batches, {kind}": lambda kind=kind: DataLoader(Drawn(kind), 4, shuffle=True) for kind in KINDS},
    "memory": lambda: images(),
    "dataset": lambda: Noisy(23, 0),
    "batches": lambda: DataLoader(Noisy(23, 0), batch_size=4, shuffle=True),
    "own generator": lambda: DataLoader(Noisy(23, 0), 4, shuffle=True, generator=torch.Generator()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_order_and_augmentation_depend_on_seed_and_epoch_alone(source):
    data = SOURCES[source]()
    one = Feed(data, 4, seed=1, train=True)
    first = all_of(one, 0)
    torch.rand(7)  # whatever the model draws in between
    second = all_of(one, 1)
    again = Feed(data, 4, seed=1, train=True)
    assert same(all_of(again, 1), second)
    assert same(all_of(again, 0), first)
    assert not same(first, second)
    assert not same(first, all_of(Feed(data, 4, seed=2, train=True), 0))


@pytest.mark.parametrize("source", SOURCES)
def test_starting_in_the_middle_gives_the_rest(source):
    feed = Feed(SOURCES[source](), 4, seed=1, train=True)
    rest = all_of(feed, 3, start=2)
    np.random.normal(), random.random()  # the restarted process has drawn other numbers
    assert same(rest, all_of(feed, 3)[2:])


@pytest.mark.parametrize("source", SOURCES)
def test_model_draws_are_not_disturbed(source):
    feed = Feed(SOURCES[source](), 4, seed=1, train=True)
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    for _ in feed.epoch(0):
        pass
    assert torch.equal(torch.rand(3), undisturbed)


@pytest.mark.parametrize("source", SOURCES)
def test_processes_share_the_global_batch(source):
    data = SOURCES[source]()
    whole = all_of(Feed(data, 4, seed=1, train=True), 0)
    ranks = [list(Feed(data, 4, seed=1, train=True, rank=r, world=2).epoch(0)) for r in range(2)]
    for step, (inputs, targets) in enumerate(whole):
        parts = [rank[step] for rank in ranks]
        kept = [p for p in parts if p.count]
        assert torch.equal(torch.cat([p.inputs for p in kept]), inputs)
        assert torch.equal(torch.cat([p.targets for p in kept]), targets)
        # mean over processes of weighted local means is the global mean
        local = [float(p.inputs.mean((1, 2, 3)).mean()) * p.weight for p in parts]
        assert sum(local) / 2 == pytest.approx(float(inputs.mean((1, 2, 3)).mean()), abs=1e-5)


def test_more_processes_than_samples_in_the_last_batch():
    parts = [list(Feed(images(9), 4, seed=0, train=True, rank=r, world=4).epoch(0))[-1] for r in range(4)]
    assert [p.count for p in parts] == [1, 0, 0, 0]
    assert [p.weight for p in parts] == [4.0, 0.0, 0.0, 0.0]


def test_draws_between_batches_do_not_reach_the_data():
    """A model that draws from NumPy and Python between batches, and is restarted in mid-epoch."""
    for kind in ("numpy", "python"):
        feed = Feed(DataLoader(Drawn(kind), 4, shuffle=True), 4, seed=1, train=True)
        whole = []
        for batch in feed.epoch(0):
            whole.append((batch.inputs, batch.targets))
            np.random.normal(), random.random()
        assert same(whole, all_of(feed, 0))
        assert same(whole[3:], all_of(feed, 0, start=3))


def test_the_models_numpy_and_python_draws_are_not_disturbed():
    for kind in ("numpy", "python"):
        np.random.seed(1), random.seed(1)
        expected = np.random.normal(), random.random()
        np.random.seed(1), random.seed(1)
        all_of(Feed(DataLoader(Drawn(kind), 4), 4, seed=1, train=True), 0)
        assert (np.random.normal(), random.random()) == expected


def test_persistent_loader_processes_are_refused():
    loader = DataLoader(Noisy(23, 0), 4, num_workers=1, persistent_workers=True)
    with pytest.raises(UserError, match="leave persistent_workers out"):
        Feed(loader, 4, seed=1, train=True)


def test_last_partial_batch():
    assert Feed(images(), 4, seed=0, train=True).steps == 6
    assert Feed(images(), 4, seed=0, train=True, drop_last=True).steps == 5
    assert len(list(Feed(images(), 4, seed=0, train=True, drop_last=True).epoch(0))) == 5


def test_evaluation_keeps_the_order_and_is_not_augmented():
    data = images(train=False)
    batches = all_of(Feed(data, 5, seed=3, train=False), 0)
    assert torch.equal(torch.cat([b[1] for b in batches]), torch.arange(23))
    expected = (data.images.float() - data.mean) * data.scale
    assert torch.allclose(torch.cat([b[0] for b in batches]), expected.permute(0, 3, 1, 2))


def test_loader_processes_change_nothing():
    data = Noisy(23, 0)
    alone = all_of(Feed(data, 4, seed=1, train=True), 0)
    feed = Feed(data, 4, seed=1, train=True, workers=1)
    assert same(all_of(feed, 0), alone)
    assert same(all_of(feed, 2), all_of(Feed(data, 4, seed=1, train=True), 2))


def test_crops_and_flips_are_real():
    """Every augmented image is a window of the padded original, mirrored or not."""
    data = images()
    feed = Feed(data, 23, seed=1, train=True)
    batch = next(iter(feed.epoch(0)))
    seen = set()
    for image, label in zip(batch.inputs, batch.targets, strict=True):
        padded = data.images[label]
        candidates = {
            (r, c, m): ((w.flip(1) if m else w).float() - data.mean) * data.scale
            for r in range(3)
            for c in range(3)
            for m in (False, True)
            for w in [padded[r : r + 8, c : c + 8]]
        }
        hits = [key for key, window in candidates.items() if torch.equal(window.permute(2, 0, 1), image)]
        assert hits
        seen.add(hits[0])
    assert len(seen) > 6
    assert {key[2] for key in seen} == {False, True}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Feed(images(), 5, seed=0, train=True, world=2), "cannot be cut into 2 equal parts"),
        (lambda: Feed(TensorDataset(torch.zeros(0, 1), torch.zeros(0)), 5, seed=0, train=True), "is empty"),
        (lambda: Feed(images(3), 5, seed=0, train=True, drop_last=True), "do not fill one batch of 5"),
        (lambda: Feed(object(), 5, seed=0, train=True), "neither a dataset"),
        (lambda: list(Feed([(1, 2, 3)], 1, seed=0, train=True).epoch(0)), "pair"),
    ],
)
def test_wrong_data_is_refused_in_one_line(make, words):
    with pytest.raises(UserError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_single_samples_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield 1

    with pytest.raises(UserError, match="give a DataLoader"):
        Feed(Stream(), 4, seed=0, train=True)
