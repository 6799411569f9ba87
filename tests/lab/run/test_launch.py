"""Several processes: the numbers of one process to rounding, by DDP and FSDP2; and a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import toy

from gradcent_lab.experiment.run_config import OFF, ON, RunConfig
from gradcent_lab.experiment.study import Task
from gradcent_lab.run.scheduler import run_pairs
from gradcent_lab.store import records as store
from gradcent_lab.store import run_lock

HERE = Path(__file__).parents[1]
# "batches" is the hash of the first process's part
TIMES = {"seconds", "samples_per_second", "batches"}
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "NO_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "accelerate": [
        *["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"],
        *["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"],
    ],
}


def launch(root, *words, launcher="torchrun", **more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
    command = [sys.executable, "-m", *LAUNCHERS[launcher], str(HERE / "toy.py"), str(root), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)


def numbers(record):
    return [{k: v for k, v in line.items() if k not in TIMES} for line in record.curves]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    root = tmp_path_factory.mktemp("alone")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
    subprocess.run([sys.executable, str(HERE / "toy.py"), str(root)], env=environment, check=True)
    return store.load(root)


def compare(records, alone):
    assert len(records) == 2
    for one, two in zip(records, alone, strict=True):
        assert one.environment["processes"] == 2
        assert one.initial_weights == two.initial_weights
        assert one.path.name == two.path.name
        for line, expected in zip(numbers(one), numbers(two), strict=True):
            assert line == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_equal_one(tmp_path, alone, launcher):
    answer = launch(tmp_path, launcher=launcher)
    assert answer.returncode == 0, answer.stderr[-2000:]
    compare(store.load(tmp_path), alone)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_killed_launch_goes_on_where_it_was(tmp_path, alone, kind):
    more = FSDP if kind == "fsdp" else {}
    assert launch(tmp_path, kind, "stop", **more).returncode != 0
    assert len(store.load(tmp_path)) == 1  # the first arm was through, the second stopped after two epochs
    assert len(list(tmp_path.glob("toy/*/checkpoint.pt"))) == 1
    answer = launch(tmp_path, kind, **more)
    assert answer.returncode == 0, answer.stderr[-2000:]
    compare(store.load(tmp_path), alone)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_ray_cluster_gives_the_same_numbers(tmp_path):
    ray = pytest.importorskip("ray")
    from gradcent_lab.run.ray_backend import run_on_ray

    paths = os.pathsep.join([str(HERE), *sys.path])
    local = run_pairs(toy.experiment, [OFF, ON], [0], tmp_path / "local")
    tasks = [Task(RunConfig(**fields(record)), toy.experiment) for record in local]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )
    try:
        records = run_on_ray(tasks, tmp_path / "ray", gpus=0)
        again = run_on_ray(tasks, tmp_path / "ray", gpus=0)
    finally:
        ray.shutdown()
    assert [numbers(r) for r in records] == [numbers(r) for r in local]
    assert [r.seconds for r in again] == [r.seconds for r in records]


def fields(record):
    arm = OFF if record.arm == "off" else ON
    return {
        "study": record.study,
        "cell": record.cell,
        "arm": arm,
        "seed": record.seed,
        "scale": record.scale,
        "settings": record.config["settings"],
    }


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["loss", "data", "write"])
def test_a_failure_on_one_rank_fails_the_run_on_all_and_the_next_run_follows(tmp_path, kind):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
    command = [
        sys.executable,
        "-m",
        *LAUNCHERS["torchrun"],
        str(HERE / "failing_ranks.py"),
        str(tmp_path),
        kind,
    ]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert answer.returncode == 0, answer.stderr[-2000:]
    runs = {record.cell: record for record in store.load(tmp_path)}
    assert not runs["good"].diverged
    if kind == "loss":  # a run that diverges is a result
        assert "the loss became nan" in runs["bad"].diverged
    else:
        assert "bad" not in runs
        for rank in (0, 1):
            line = next(line for line in answer.stdout.splitlines() if line.startswith(f"rank {rank}:"))
            assert "1 of 2 runs failed, the rest is stored" in line
            assert {"write": "the disk is broken"}.get(kind, "cannot read image 7") in line
    assert not any(run_lock.is_held(folder) for folder in tmp_path.glob("toy/*"))
