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
from gradcent_lab.run import stop_signal
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.run_one import run_task
from gradcent_lab.run.stop_signal import Terminated
from gradcent_lab.store.records import RunRecord

ATTEMPTS = 3
GRACE = 30.0  # seconds that a worker has for its last checkpoint when the study is stopped


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

    def hand_next(number: int) -> None:
        """Send the next task to a worker; one that died meanwhile is replaced as long as tasks are left."""
        while True:
            worker = pool[number]
            worker.task = queue.popleft() if queue else None
            if worker.task is not None:
                attempts[worker.task.config.run_id] += 1
            try:
                worker.connection.send(worker.task)
                return
            except OSError:
                if worker.task is None:
                    return
                replace(number)

    def replace(number: int) -> None:
        """Put the task of a dead worker back into the queue, or give it up, and start another worker."""
        worker, task = pool[number], pool[number].task
        worker.process.join()
        worker.connection.close()
        worker.task = None
        if task is not None and attempts[task.config.run_id] < ATTEMPTS:
            queue.appendleft(task)
        elif task is not None:
            code = worker.process.exitcode
            failed(task, UserError(f"{task.config.label}: its process died {ATTEMPTS} times ({code})"))
        pool[number] = start(number)

    try:
        for number in range(min(workers, len(tasks))):
            pool.append(start(number))
            hand_next(number)
        while any(worker.task is not None for worker in pool):
            busy = {
                worker.connection: number for number, worker in enumerate(pool) if worker.task is not None
            }
            for connection in wait(list(busy)):
                number = busy[connection]  # type: ignore[index]
                worker, task = pool[number], pool[number].task
                assert task is not None
                try:
                    kind, *content = worker.connection.recv()
                except (EOFError, OSError):
                    replace(number)
                    hand_next(number)
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
                hand_next(number)
    finally:
        for worker in pool:
            if worker.task is not None:
                worker.process.terminate()  # it writes a last checkpoint
        for worker in pool:
            worker.process.join(GRACE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()


class _Relay:
    """Sends what a run tells its display to the process that has one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *content: self._connection.send(("progress", name, *content))


def _serve(connection: Connection, root: Path, options: Options, threads: int, number: int) -> None:
    """The loop of a worker: receive a task, send its answer; None ends the loop."""
    import torch

    torch.set_num_threads(threads)
    # device_count does not initialize CUDA, so the variable still takes effect
    gpu = None if options.cpu else assigned_gpu(number, torch.cuda.device_count())
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    relay = _Relay(connection)
    try:
        with stop_signal.handled():
            while (task := connection.recv()) is not None:
                connection.send(_answer(task, root, options, relay))
    except KeyboardInterrupt:
        sys.exit(130)
    except Terminated:
        sys.exit(143)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the process that sends tasks is gone
        sys.exit(1)


def assigned_gpu(number: int, visible: int) -> str | None:
    """Return the GPU of worker `number` as CUDA_VISIBLE_DEVICES names it, or None without GPUs.

    The `visible` GPUs are the first ones of an inherited CUDA_VISIBLE_DEVICES (indices or UUIDs), or all.
    """
    if visible == 0:
        return None
    inherited = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in inherited.split(",")] if inherited else [str(i) for i in range(visible)]
    return names[number % visible]


def _answer(task: Task, root: Path, options: Options, relay: Any) -> tuple[str, Any]:
    try:
        return "done", run_task(task, root, options, relay)
    except UserError as error:
        return "refused", str(error)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception:
        return "broke", traceback.format_exc()


def _check_sendable(tasks: Sequence[Task]) -> None:
    try:
        for task in tasks:
            pickle.dumps(task)
    except Exception as error:
        raise UserError(
            "to run several at a time the experiment must be a function that other processes can import "
            f"(module:function), without lambdas of its own at that level: {error}"
        ) from error
