"""Many runs: each once, in whole pairs, with several processes at it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import toy

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, ON, Arm, RunConfig
from gradcent_lab.experiment.study import Cell, Scale, Study, Task, tasks_of
from gradcent_lab.run.progress import SilentProgress
from gradcent_lab.run.scheduler import run_pairs, run_study, run_tasks, shard
from gradcent_lab.store import records as store
from gradcent_lab.store import run_lock

TIMES = {"seconds", "samples_per_second"}


def numbers(record):
    return [{k: v for k, v in line.items() if k not in TIMES} for line in record.curves]


class Log(SilentProgress):
    def __init__(self):
        self.words = []

    def run_started(self, config):
        self.words.append(("started", config.run_id))

    def run_finished(self, record):
        self.words.append(("finished", record.path.name))

    def run_skipped(self, record):
        self.words.append(("skipped", record.path.name))


def build(settings, data):
    made = toy.experiment()
    if settings["lr"] > 1:
        raise UserError(f"lr {settings['lr']} is too large")
    return replace(made, epochs=1)


def study(lr=(0.1, 0.2)):
    cells = tuple(Cell(str(rate), {"lr": rate, "epochs": 1}) for rate in lr)
    return Study("two", Scale("smoke", "tiny"), cells, (OFF, ON), (0, 1), build)


def test_finished_runs_are_skipped(tmp_path):
    log = Log()
    first = run_pairs(toy.experiment(), [OFF, ON], [0], tmp_path, progress=log)
    assert [word for word, _ in log.words] == ["started", "finished"] * 2
    log = Log()
    second = run_pairs(toy.experiment(), [OFF, ON], [0], tmp_path, progress=log)
    assert [word for word, _ in log.words] == ["skipped"] * 2
    assert first == second
    assert store.load(tmp_path) == sorted(first, key=lambda r: r.arm)
    assert [(r.arm, r.seed, r.cell, r.scale, r.metric_name) for r in first] == [
        ("off", 0, "toy", "own", "accuracy"),
        ("on", 0, "toy", "own", "accuracy"),
    ]


def test_a_changed_experiment_is_another_run(tmp_path):
    one = run_pairs(toy.experiment(), [OFF], [0], tmp_path)
    two = run_pairs(replace(toy.experiment(), epochs=2), [OFF], [0], tmp_path)
    three = run_pairs(
        replace(toy.experiment(), optimizer=partial(torch.optim.SGD, lr=0.01)), [OFF], [0], tmp_path
    )
    assert len({r.path for r in one + two + three}) == 3


def test_workers_give_the_same_numbers(request, tmp_path):
    # a worker has one thread; the order of additions, and so the last bits, depend on their number
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    alone = run_pairs(toy.experiment, [OFF, ON], [0, 1], tmp_path / "a")
    log = Log()
    threads = torch.get_num_threads()
    try:
        together = run_pairs(toy.experiment, [OFF, ON], [0, 1], tmp_path / "b", workers=2, progress=log)
    finally:
        torch.set_num_threads(threads)
    assert [numbers(r) for r in alone] == [numbers(r) for r in together]
    assert sorted(word for word, _ in log.words) == ["finished"] * 4 + ["started"] * 4


def test_workers_need_something_they_can_import(tmp_path):
    local = replace(toy.experiment(), loss=lambda a, b: a.sum())
    with pytest.raises(UserError, match="other processes can import"):
        run_pairs(local, [OFF, ON], [0], tmp_path, workers=2)


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tmp_path):
    """The second process to start is shot once it has written a checkpoint; all runs end all the same."""
    code = (
        "import sys, toy\n"
        "from dataclasses import replace\n"
        "from gradcent_lab.experiment.run_config import OFF, ON\n"
        "from gradcent_lab.run.accelerator import Options\n"
        "from gradcent_lab.run.scheduler import run_pairs\n"
        "if __name__ == '__main__':\n"
        "    run_pairs(toy.slow_experiment, [OFF, ON], [0, 1], sys.argv[1], workers=2,\n"
        "              options=Options(checkpoint_seconds=0.0))\n"
    )
    script = tmp_path / "start.py"
    script.write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    root = tmp_path / "runs"
    process = subprocess.Popen([sys.executable, str(script), str(root)], env=environment)
    while not (found := list(root.glob("toy/*/checkpoint.pt"))):
        assert process.poll() is None
        time.sleep(0.01)
    import json

    lock = max(found[0].parent.glob("lock.*"))
    os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
    assert process.wait(120) == 0
    assert len(store.load(root)) == 4


@pytest.mark.slow
def test_two_processes_on_one_study(tmp_path):
    here = Path(__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(here), *sys.path])
    command = [sys.executable, str(here / "toy.py"), str(tmp_path / "both"), "dropout", "slow"]
    pair = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait(120) for process in pair] == [0, 0]
    command[2] = str(tmp_path / "alone")
    assert subprocess.run(command, env=environment, timeout=120).returncode == 0
    both, alone = store.load(tmp_path / "both"), store.load(tmp_path / "alone")
    assert [numbers(r) for r in both] == [numbers(r) for r in alone]
    assert not list((tmp_path / "both").rglob("lock.*"))


def test_a_run_in_other_hands_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("gradcent_lab.run.scheduler.POLL_SECONDS", 0.01)
    experiment = toy.experiment()
    (record,) = run_pairs(experiment, [OFF], [0], tmp_path / "elsewhere")
    path = tmp_path / "here" / "toy" / record.path.name
    path.mkdir(parents=True)
    lock = run_lock.acquire(path)
    assert lock is not None
    looks = []

    def finish_at_third_look(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            for file in record.path.iterdir():
                (path / file.name).write_bytes(file.read_bytes())
            lock.release()

    monkeypatch.setattr("gradcent_lab.run.scheduler.time.sleep", finish_at_third_look)
    log = Log()
    (found,) = run_pairs(experiment, [OFF], [0], tmp_path / "here", progress=log)
    assert len(looks) == 3
    assert [word for word, _ in log.words] == ["skipped"]
    assert numbers(found) == numbers(record)


def test_seeds_come_first_and_parts_are_whole_pairs():
    tasks = tasks_of(study(), None)
    assert [(t.config.seed, t.config.cell, t.config.arm.name) for t in tasks][:4] == [
        (0, "0.1", "off"),
        (0, "0.1", "on"),
        (0, "0.2", "off"),
        (0, "0.2", "on"),
    ]
    parts = [shard(tasks, part, 3) for part in (1, 2, 3)]
    assert sorted(t.config.run_id for part in parts for t in part) == sorted(t.config.run_id for t in tasks)
    for part in parts:
        keys = [(t.config.seed, t.config.cell) for t in part]
        assert all(keys.count(key) == 2 for key in keys)
    with pytest.raises(UserError, match="shard 4/3"):
        shard(tasks, 4, 3)


def test_a_part_keeps_the_order_of_the_tasks():
    tasks = sorted(tasks_of(study(), None), key=lambda t: t.config.arm.name)  # one arm after the other
    assert shard(tasks, 1, 1) == tasks
    for part in (1, 2, 3):
        chosen = shard(tasks, part, 3)
        assert chosen == [task for task in tasks if task in chosen]


def test_one_failure_does_not_stop_the_others(tmp_path):
    with pytest.raises(
        UserError, match=r"4 of 8 runs failed, the rest is stored; lr 1e\+30 is too large"
    ) as error:
        run_study(study(lr=(0.1, 1e30)), tmp_path)
    assert "\n" not in str(error.value)
    assert len(store.load(tmp_path)) == 4
    assert "is too large" in next(tmp_path.glob("two/*/failed.json")).read_text()


def test_arm_may_replace_settings(tmp_path):
    odd = Arm("odd", None, {"lr": 0.3})
    base = study(lr=(0.1,))
    cell = replace(base.cells[0], arms=(OFF, odd))
    records = run_study(replace(base, cells=(cell,), seeds=(0,)), tmp_path)
    assert [r.config["settings"]["lr"] for r in records] == [0.1, 0.3]


def test_run_names_depend_on_everything_that_counts():
    base = RunConfig("s", "c", OFF, 0, "small", {"lr": 0.1, "epochs": 2})
    others = [
        replace(base, study="t"),
        replace(base, cell="d"),
        replace(base, arm=ON),
        replace(base, seed=1),
        replace(base, scale="paper"),
        replace(base, settings={"lr": 0.2, "epochs": 2}),
        replace(base, numerics=replace(base.numerics, precision="bf16")),
    ]
    assert len({config.run_id for config in (base, *others)}) == 8
    assert replace(base, settings={"epochs": 2, "lr": 0.1}).run_id == base.run_id


def test_measurements_are_stored_like_runs(tmp_path):
    from gradcent_lab.experiment.spec import Measurement

    made = Measurement(lambda seed, arm: (1.5, [{"row": 1}, {"row": 2}]), "metres", False)
    config = RunConfig("m", "c", OFF, 0, "smoke", {})
    (record,) = run_tasks([Task(config, lambda: made)], tmp_path)
    assert (record.best, record.last, record.metric_name) == (1.5, 1.5, "metres")
    assert record.curves == [{"row": 1}, {"row": 2}]
