"""`python -m campaigns.ray_trials FOLDER SEED SECONDS KIND …`: lose workers and nodes of a local Ray cluster.

Prints one line of JSON per trial. The nodes are processes of this machine (ray.cluster_utils), each with its
own raylet and workers, so that a node can be removed without notice.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import campaign_study
import ray
from ray.cluster_utils import Cluster

from gradcent_lab.experiment.study import tasks_of
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.ray_backend import run_on_ray
from gradcent_lab.run.scheduler import run_tasks

from .common import numbers

PATIENCE = 240.0  # seconds after which a study counts as hanging
OPTIONS = Options(checkpoint_seconds=0.0, cpu=True)


def main() -> int:
    """Run the trials."""
    folder, rng, seconds = Path(sys.argv[1]), random.Random(sys.argv[2]), float(sys.argv[3])
    began = time.monotonic()
    tasks = tasks_of(campaign_study.RECIPE.study("slow"), None)
    local = run_tasks(tasks, folder / "local", options=OPTIONS)
    expected = [(numbers(record), record.iterations()) for record in local]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    paths = {"PYTHONPATH": os.environ["PYTHONPATH"], "OMP_NUM_THREADS": "1"}
    ray.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": paths},
    )
    try:
        run_on_ray(tasks, folder / "first", options=OPTIONS, gpus=0)  # the workers import torch
        for number, kind in enumerate(sys.argv[4:]):
            if time.monotonic() - began > seconds:
                break
            problem = _trial(kind, tasks, folder / f"trial-{number}", expected, cluster, nodes, rng)
            print(json.dumps({"kind": kind, "problem": problem}), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return 0


def _trial(
    kind: str, tasks: Any, root: Path, expected: Any, cluster: Cluster, nodes: list[Any], rng: random.Random
) -> list[str]:
    """Lose a worker or a node in the middle of a study; return what is wrong ([] for nothing)."""
    outcome: dict[str, Any] = {}

    def study() -> None:
        try:
            outcome["records"] = run_on_ray(tasks, root, options=OPTIONS, gpus=0)
        except BaseException as error:
            outcome["error"] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=study, daemon=True)
    thread.start()
    while thread.is_alive() and not list(root.glob("campaign/*/checkpoint.pt")):
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 0.5))
    if kind == "Ray worker killed":
        workers = [pid for node in nodes for pid in _workers(node)]
        if not workers or not thread.is_alive():
            return ["lost", f"{kind}: the study ended before a worker was killed"]
        os.kill(rng.choice(workers), signal.SIGKILL)
    else:
        cluster.remove_node(nodes.pop(rng.randrange(len(nodes))), allow_graceful=False)
        nodes.append(cluster.add_node(num_cpus=1))
    thread.join(PATIENCE)
    if thread.is_alive():
        return ["lost", f"{kind}: the study hangs"]
    if "error" in outcome:
        return ["lost", f"{kind}: {outcome['error']}"]
    if [(numbers(record), record.iterations()) for record in outcome["records"]] != expected:
        return ["wrong", f"{kind}: other numbers than without Ray"]
    stray = [
        p.name for p in root.glob("campaign/*/*") if p.name.startswith((".", "lock.", "check", "failed"))
    ]
    return ["wrong", f"{kind}: left behind {sorted(stray)}"] if stray else []


def _workers(node: Any) -> list[int]:
    """Return the workers of a node that run a task now: Ray names a process by what it does."""
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            name = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if parent == raylet and name.startswith(b"ray::_work"):
            found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
