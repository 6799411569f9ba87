"""`torchrun failing_ranks.py ROOT KIND`: two runs, the first of which fails on rank 1 alone."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import toy

from gradcent_lab.data.batches import DataError
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, RunConfig
from gradcent_lab.experiment.study import Task
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.scheduler import run_tasks

KIND = sys.argv[2] if len(sys.argv) > 2 else ""
RANK = os.environ.get("RANK", "0")


class Unreadable(toy.Noisy):
    """Its seventh sample cannot be read on rank 1."""

    def __getitem__(self, index):
        if index == 7 and RANK == "1":
            raise DataError("cannot read image 7")
        return super().__getitem__(index)


def loss(output, target):
    value = torch.nn.functional.cross_entropy(output, target)
    return value * float("nan") if RANK == "1" else value


def good():
    return replace(toy.experiment(), model=toy.plain_network)


def bad():
    if KIND == "loss":
        return replace(good(), loss=loss)
    if KIND == "write":  # the first checkpoint fails, see main
        return good()
    if KIND == "evaluation":
        return replace(good(), eval_data=Unreadable(40, 2))
    return replace(good(), train_data=Unreadable(70, 1))


def write_on_first_rank_fails(*_):
    raise UserError("the disk is broken")


def main() -> None:
    if KIND == "write" and RANK == "0":
        from gradcent_lab.run import checkpoint

        calls = iter([True])
        original = checkpoint.write_atomically
        checkpoint.write_atomically = lambda *a: (
            write_on_first_rank_fails() if next(calls, False) else original(*a)
        )
    tasks = [
        Task(RunConfig("toy", name, OFF, 0, "own", {"epochs": 4, "name": name}), make)
        for name, make in (("bad", bad), ("good", good))
    ]
    try:
        run_tasks(tasks, Path(sys.argv[1]), options=Options(checkpoint_seconds=0.0), keep_going=True)
    except UserError as error:
        os.write(1, f"rank {RANK}: {error}\n".encode())  # one write: both ranks share the pipe


if __name__ == "__main__":
    main()
