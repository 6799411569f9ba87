"""Worker processes: one that dies at any moment costs a retry, not the study."""

from __future__ import annotations

import multiprocessing

import toy

from gradcent_lab.experiment.run_config import OFF, RunConfig
from gradcent_lab.experiment.study import Task
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.process_pool import run_in_workers
from gradcent_lab.run.progress import SilentProgress


def test_a_worker_that_dies_between_its_answer_and_its_next_task_is_replaced(tmp_path):
    tasks = [
        Task(RunConfig("toy", "toy", OFF, seed, "own", {"epochs": 4}), toy.experiment) for seed in (0, 1)
    ]
    finished = []

    def done(task, record):
        finished.append(task.config.seed)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()

    def failed(task, error):
        raise error

    run_in_workers(tasks, tmp_path, Options(), SilentProgress(), 1, done, failed)
    assert finished == [0, 1]
