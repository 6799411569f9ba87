"""Worker processes: each is bound to one of the GPUs that the parent may use, and one that dies is replaced."""

import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
import torch
import toy

from gradcent_lab import store
from gradcent_lab.experiment.run_config import OFF, RunConfig
from gradcent_lab.experiment.spec import describe
from gradcent_lab.experiment.study import Task
from gradcent_lab.run import process_pool
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.progress import SilentProgress


@pytest.mark.parametrize(
    ("inherited", "visible", "expected"),
    [
        (None, 2, ["0", "1", "0"]),
        ("4,5", 2, ["4", "5", "4"]),
        (" 6 , 7", 2, ["6", "7", "6"]),
        ("GPU-aa,GPU-bb,GPU-cc", 3, ["GPU-aa", "GPU-bb", "GPU-cc"]),
        ("3,99", 1, ["3", "3", "3"]),  # CUDA ignores what follows an invalid index
        ("", 0, [None, None, None]),
        (None, 0, [None, None, None]),
    ],
)
def test_a_worker_takes_one_of_the_inherited_gpus(monkeypatch, inherited, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if inherited is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    assert [process_pool.assigned_gpu(number, visible) for number in range(3)] == expected


class Closed:
    """A connection whose sender has no task."""

    def recv(self):
        return None


@pytest.mark.parametrize(("cpu", "expected"), [(False, "5"), (True, "4,5")])
def test_the_worker_sets_the_variable_unless_it_runs_on_the_cpu(monkeypatch, tmp_path, cpu, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    process_pool._serve(Closed(), tmp_path, Options(cpu=cpu), torch.get_num_threads(), 1)
    assert process_pool.os.environ["CUDA_VISIBLE_DEVICES"] == expected


def test_a_worker_that_dies_between_its_answer_and_its_next_task_is_replaced(tmp_path):
    """The pipe to it breaks when the next task is sent, not when an answer is awaited."""
    made = replace(toy.experiment(), epochs=1)
    tasks = [
        Task(RunConfig("toy", "toy", OFF, seed, "own", describe(made)), toy.one_epoch) for seed in (0, 1, 2)
    ]
    pids = []

    def done(task, record):
        (worker,) = multiprocessing.active_children()
        pids.append(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()

    def failed(task, error):
        raise error

    process_pool.run_in_workers(tasks, tmp_path, Options(), SilentProgress(), 1, done, failed)
    assert len(set(pids)) == len(pids) == 3
    assert len(store.load(tmp_path)) == 3
