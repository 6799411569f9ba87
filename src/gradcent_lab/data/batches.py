"""Batches: the same ones, in the same order, for every arm and any number of processes.

The global batch is formed first and then cut among the processes, so training with n processes sees exactly
the batches of one process. Three kinds of data are fed: in memory (anything with `take`), a map-style
dataset, and an iterable of ready batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gradcent_lab.data.held_generators import held_generators, reseed
from gradcent_lab.data.random_streams import cpu_states, generator, seeded, set_cpu_states
from gradcent_lab.errors import DataError, UserError


@dataclass(frozen=True)
class Batch:
    """This process's part of a global batch. `weight` is its share times the number of processes."""

    inputs: Any
    targets: Any
    count: int
    weight: float


def resolve(data: Any) -> Any:
    """Return the data itself where a function of no arguments was given."""
    if callable(data) and not hasattr(data, "__getitem__") and not hasattr(data, "__iter__"):
        data = data()
    if isinstance(data, IterableDataset):
        raise UserError(
            f"{type(data).__name__} yields single samples: give a DataLoader over it, which yields batches"
        )
    if not hasattr(data, "__getitem__") and not hasattr(data, "__iter__") and not hasattr(data, "take"):
        raise UserError(
            f"data of type {type(data).__name__} is neither a dataset of (input, target) pairs nor batches"
        )
    return data


class Feed:
    """The batches of every epoch for one process."""

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        seed: int,
        train: bool,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
    ) -> None:
        if train and batch_size % world:
            raise UserError(
                f"the batch size {batch_size} cannot be cut into {world} equal parts, one a process"
            )
        self.data = resolve(data)
        self.batch_size = batch_size
        self.seed = seed
        self.train = train
        self.drop_last = drop_last
        self.rank, self.world, self.workers = rank, world, workers
        self.in_memory = hasattr(self.data, "take")
        self.map_style = not isinstance(self.data, DataLoader) and hasattr(self.data, "__getitem__")
        self.samples = len(self.data) if self.in_memory or self.map_style else None
        if isinstance(self.data, DataLoader) and self.data.persistent_workers:
            raise UserError(
                "a DataLoader with persistent_workers=True keeps random states from one run to the next, so the "
                "arms of a pair would see different batches: leave persistent_workers out"
            )
        if self.samples == 0:
            raise UserError(f"the {'training' if train else 'evaluation'} data is empty")
        if self.drop_last and self.samples is not None and self.samples < batch_size:
            raise UserError(f"{self.samples} samples do not fill one batch of {batch_size}")
        self._loader: DataLoader[Any] | None = None
        self._order: list[list[tuple[int, int]]] = []
        self._steps: int | None = None

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        if self._steps is None:
            if self.samples is not None:
                full, rest = divmod(self.samples, self.batch_size)
                self._steps = full + (1 if rest and not self.drop_last else 0)
            elif hasattr(self.data, "__len__"):
                self._steps = len(self.data)
            else:  # counted once, with the generators put back
                reseed(held_generators(self.data), self.seed, "count")
                with seeded(self.seed, "count"):
                    self._steps = sum(1 for _ in self.data)
        return self._steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` from number `start` on."""
        if self.samples is None:
            yield from self._ready(epoch, start)
            return
        parts = [self._part(number) for number in range(start, self.steps)]
        order = self._permutation(epoch)
        if self.in_memory:
            draws = self._draws(epoch)
            for positions, count, weight in parts:
                chosen = None if draws is None else draws[positions]
                inputs, targets = self.data.take(order[positions], chosen)
                yield Batch(inputs, targets, count, weight)
            return
        key = epoch if self.train else 0
        self._order[:] = [[(key, i) for i in order[positions].tolist()] for positions, _, _ in parts]
        if self._loader is None:
            self._loader = DataLoader(
                _Seeded(self.data, self.seed),
                batch_sampler=self._order,
                collate_fn=getattr(self.data, "collate", None),  # for samples that do not stack
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
                pin_memory=torch.cuda.is_available(),
                generator=torch.Generator(),  # else every epoch takes a draw from the model's generator
            )
        batches = iter(self._loader)
        for _, count, weight in parts:
            inputs, targets = _pair(_next(batches))
            yield Batch(inputs, targets, count, weight)

    def _permutation(self, epoch: int) -> torch.Tensor:
        assert self.samples is not None
        if not self.train:
            return torch.arange(self.samples)
        return torch.randperm(self.samples, generator=generator(self.seed, "order", epoch))

    def _draws(self, epoch: int) -> torch.Tensor | None:
        draws = getattr(self.data, "draws_per_sample", 0)
        if not draws or self.samples is None:
            return None
        epoch = epoch if self.train else 0
        return torch.rand(self.samples, draws, generator=generator(self.seed, "augment", epoch))

    def _part(self, number: int) -> tuple[torch.Tensor, int, float]:
        """Positions of this process in batch `number`, how many count, and their weight."""
        assert self.samples is not None
        first = number * self.batch_size
        positions = torch.arange(first, min(first + self.batch_size, self.samples))
        mine = torch.tensor_split(positions, self.world)[self.rank]
        if len(mine):
            return mine, len(mine), len(mine) * self.world / len(positions)
        return positions[:1], 0, 0.0  # takes part in the collectives, counts for nothing

    def _ready(self, epoch: int, start: int) -> Iterator[Batch]:
        """Split ready batches among the processes; they are drawn anew, so the first `start` are skipped."""
        steps = self.steps  # counting may iterate over the data, so it comes before seeding
        key = (self.seed, "batches", epoch if self.train else 0)
        # without this a loader, sampler or dataset with its own generator continues where the last run left it
        reseed(held_generators(self.data), *key)
        with seeded(*key):
            iterator = iter(self.data)
            states = cpu_states()
        for number in range(steps):
            # The iterable draws from the global generators between batches, and so may the model: keep the
            # iterable's streams apart, so that both are the same in every arm and after a restart.
            outside = cpu_states()
            set_cpu_states(states)
            try:
                batch = _next(iterator)
            except StopIteration:
                return
            finally:
                states = cpu_states()
                set_cpu_states(outside)
            if number >= start:
                inputs, targets = _pair(batch)
                yield self._cut(inputs, targets)

    def _cut(self, inputs: Any, targets: Any) -> Batch:
        total = size(targets)
        if self.world == 1:
            return Batch(inputs, targets, total, 1.0)
        bounds = [total * r // self.world for r in range(self.world + 1)]
        low, high = bounds[self.rank], bounds[self.rank + 1]
        count, weight = high - low, (high - low) * self.world / total
        if count == 0:
            low, high = 0, 1
        return Batch(_slice(inputs, low, high), _slice(targets, low, high), count, weight)


class _Seeded(Dataset[Any]):
    """A dataset whose random augmentation depends on the seed, the epoch and the sample alone."""

    def __init__(self, data: Any, seed: int) -> None:
        self.data, self.seed = data, seed
        self.generators = held_generators(data)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        reseed(self.generators, self.seed, "sample", epoch, index)
        with seeded(self.seed, "sample", epoch, index):
            return self.data[index]

    def __len__(self) -> int:
        return len(self.data)


def size(values: Any) -> int:
    """Return the number of samples in a batch of inputs or targets."""
    if isinstance(values, torch.Tensor):
        return values.shape[0]
    if isinstance(values, dict):
        return size(next(iter(values.values())))
    if isinstance(values, list | tuple) and values and isinstance(values[0], torch.Tensor):
        return size(values[0])
    return len(values)


def _slice(values: Any, low: int, high: int) -> Any:
    if isinstance(values, dict):
        return {key: _slice(value, low, high) for key, value in values.items()}
    if isinstance(values, list | tuple) and values and isinstance(values[0], torch.Tensor):
        return type(values)(_slice(value, low, high) for value in values)
    return values[low:high]


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    raise UserError(f"a batch must be an (inputs, targets) pair, not {type(batch).__name__}")


def _next(iterator: Iterator[Any]) -> Any:
    """Take the next batch; a loading worker's wrapped error comes out as the one line it began as."""
    try:
        return next(iterator)
    except DataError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise DataError(lines[-1].rpartition("DataError: ")[2]) from None
