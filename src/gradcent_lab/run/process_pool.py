"""N runs at a time on one machine: worker processes that are handed one task after another.

A worker that dies (killed, out of memory) costs one run's time since its checkpoint: the task goes to a
new worker, twice at most.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.study import Task
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.run_one import run_task
from gradcent_lab.store.records import RunRecord

ATTEMPTS = 3


@dataclass
class _Worker:
    process: Any
    connection: Connection
    task: Task | None = None


def run_in_workers(
    tasks: Sequence[Task],
    root: Path,
    options: Options,
    progress: Any,
    workers: int,
    done: Callable[[Task, RunRecord | None], None],
    failed: Callable[[Task, UserError], None],
) -> None:
    """Hand every task to a worker; `done` and `failed` are called here as the answers come in."""
    _check_sendable(tasks)
    context = multiprocessing.get_context("spawn")
    queue, attempts = deque(tasks), dict.fromkeys((t.config.run_id for t in tasks), 0)
    pool: list[_Worker] = []
    threads = max(1, (os.cpu_count() or 1) // workers)

    def start(number: int) -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, root, options, threads, number), daemon=False, name=f"run-{number}"
        )
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def hand(worker: _Worker) -> None:
        worker.task = queue.popleft() if queue else None
        worker.connection.send(worker.task)
        if worker.task is not None:
            attempts[worker.task.config.run_id] += 1

    try:
        for number in range(min(workers, len(tasks))):
            pool.append(start(number))
            hand(pool[-1])
        while any(worker.task is not None for worker in pool):
            busy = {worker.connection: worker for worker in pool if worker.task is not None}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                task = worker.task
                assert task is not None
                try:
                    kind, *content = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    worker.process.join()
                    if attempts[task.config.run_id] < ATTEMPTS:
                        queue.appendleft(task)
                    else:
                        code = worker.process.exitcode
                        failed(
                            task,
                            UserError(f"{task.config.label}: its process died {ATTEMPTS} times ({code})"),
                        )
                    pool[pool.index(worker)] = replacement = start(int(worker.process.name.split("-")[1]))
                    hand(replacement)
                    continue
                if kind == "progress":
                    getattr(progress, content[0])(*content[1:])
                    continue
                if kind == "done":
                    done(task, content[0])
                elif kind == "refused":
                    failed(task, UserError(content[0]))
                else:
                    raise RuntimeError(f"{task.config.label} failed in a worker:\n{content[0]}")
                hand(worker)
    finally:
        for worker in pool:
            if worker.task is not None:
                worker.process.terminate()
            worker.process.join()
            worker.connection.close()


class _Relay:
    """Sends what a run tells its display to the process that has one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *content: self._connection.send(("progress", name, *content))


def _serve(connection: Connection, root: Path, options: Options, threads: int, number: int) -> None:
    """A worker's life: a task, its answer, the next task; None ends it."""
    import torch

    torch.set_num_threads(threads)
    gpus = torch.cuda.device_count() if not options.cpu else 0
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number % gpus)
    relay = _Relay(connection)
    while (task := connection.recv()) is not None:
        try:
            answer = ("done", run_task(task, root, options, relay))
        except UserError as error:
            answer = ("refused", str(error))
        except KeyboardInterrupt:
            sys.exit(130)
        except BaseException:
            answer = ("broke", traceback.format_exc())
        connection.send(answer)


def _check_sendable(tasks: Sequence[Task]) -> None:
    try:
        for task in tasks:
            pickle.dumps(task)
    except Exception as error:
        raise UserError(
            "to run several at a time the experiment must be a function that other processes can import "
            f"(module:function), without lambdas of its own at that level: {error}"
        ) from error
