"""A failure on one process of a launch becomes a failure on all, at the same point, before anything waits for it.

Collectives match by order. A process that raises between two of them leaves the others waiting indefinitely, or
pairs its next collective with the wrong one of theirs. So the processes exchange one flag after every block
that can fail on one of them alone: reading a batch, the forward pass and the loss, every file that only the
first process writes, and the end of a run. The flags travel by a gloo group of their own, which needs no
synchronization with a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gradcent_lab.errors import Diverged, UserError
from gradcent_lab.run import stop_signal
from gradcent_lab.run.stop_signal import Terminated
from gradcent_lab.store.run_lock import LostLock

_groups: dict[int, Any] = {}  # the control group of the launch, made once


class RankAgreement:
    """Exchanges failures and stop requests between the processes of a launch; free of cost for one process."""

    def __init__(self, world: int, rank: int) -> None:
        self.world, self.rank = world, rank
        self._stop = False
        if world > 1 and world not in _groups:
            _groups[world] = torch.distributed.new_group(backend="gloo")

    @property
    def stop_requested(self) -> bool:
        """Whether any process was asked to end, as of the last exchange."""
        return stop_signal.requested() if self.world == 1 else self._stop

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Run a block that all processes enter; raise in all of them if it raises in one."""
        if self.world == 1:
            yield
            return
        try:
            yield
        except BaseException as error:
            if getattr(error, "agreed", False):
                raise
            self._exchange(error)
            raise
        self._exchange(None)

    def _exchange(self, error: BaseException | None) -> None:
        flags = torch.tensor([int(error is not None), int(stop_signal.requested())])
        group = _groups[self.world]
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX, group=group)
        self._stop = bool(flags[1])
        if not flags[0]:
            return
        outcomes: list[Any] = [None] * self.world
        own = (
            None
            if error is None
            else (type(error).__name__, _first_line(error), isinstance(error, UserError))
        )
        torch.distributed.all_gather_object(outcomes, own, group=group)
        if error is not None:
            error.agreed = True  # type: ignore[attr-defined]
            return
        rank, (kind, message, caused_by_user) = next(
            (rank, outcome) for rank, outcome in enumerate(outcomes) if outcome is not None
        )
        raised = _same_kind(kind, caused_by_user, f"{message} (in process {rank} of {self.world})")
        raised.agreed = True  # type: ignore[attr-defined]
        raise raised


def _same_kind(kind: str, caused_by_user: bool, message: str) -> BaseException:
    if kind == "LostLock":
        return LostLock(message)
    if kind == "Diverged":
        return Diverged(message)
    if kind in ("Terminated", "KeyboardInterrupt"):
        return Terminated(message)
    return UserError(message) if caused_by_user else RuntimeError(message)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    text = lines[0] if lines else ""
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
