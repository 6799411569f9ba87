"""SIGTERM: a last checkpoint within the grace period, exit status 143, and the same bits afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradcent_lab.run import stop_signal
from gradcent_lab.store import records as store

HERE = Path(__file__).parents[1]
TIMES = {"seconds", "samples_per_second"}


def numbers(record):
    return [{k: v for k, v in line.items() if k not in TIMES} for line in record.curves]


def start(out, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
    command = [sys.executable, "-m", "gradcent_lab.cli", "compare", "toy:slow_experiment", "--seeds", "1"]
    return subprocess.Popen(
        [*command, "--out", str(out), *words],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )


def finish(process):
    process.communicate(timeout=120)
    return process.returncode


def test_outside_a_run_it_ends_the_process_at_once_and_inside_it_waits():
    with stop_signal.handled(), pytest.raises(stop_signal.Terminated):
        os.kill(os.getpid(), signal.SIGTERM)
    with stop_signal.handled(), stop_signal.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_signal.requested()
        with pytest.raises(stop_signal.Terminated):  # a second one does not wait
            os.kill(os.getpid(), signal.SIGTERM)
    assert not stop_signal.requested()


@pytest.mark.slow
def test_terminated_comparison_continues_from_its_last_step(tmp_path):
    assert finish(start(tmp_path / "whole")) == 0
    process = start(tmp_path / "stopped")
    began = time.monotonic()
    while not list((tmp_path / "stopped").glob("runs/toy/*/metrics.jsonl")):  # one epoch is done
        assert process.poll() is None
        assert time.monotonic() - began < 60
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors.decode()
    assert b"terminated; the same command continues" in errors
    assert b"Traceback" not in errors
    # the usual interval of 30 s has not passed, so this is the last checkpoint that SIGTERM asks for
    assert len(list((tmp_path / "stopped").glob("runs/toy/*/checkpoint.pt"))) == 1
    assert finish(start(tmp_path / "stopped")) == 0
    whole, stopped = store.load(tmp_path / "whole/runs"), store.load(tmp_path / "stopped/runs")
    assert [numbers(r) for r in whole] == [numbers(r) for r in stopped]
