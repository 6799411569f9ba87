"""Which process a file belongs to, with and without /proc."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gradcent_lab.store import process_identity


@pytest.fixture
def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_tag_names_this_process_and_no_other(dead_pid):
    tag = process_identity.tag()
    assert not process_identity.is_dead(tag)
    machine, pid, start = tag.split("-")
    assert pid == str(os.getpid())
    assert process_identity.is_dead(f"{machine}-{pid}-1")  # the pid was used again
    assert process_identity.is_dead(f"{machine}-{dead_pid}-{start}")
    assert not process_identity.is_dead(f"0{machine[1:]}x-{dead_pid}-{start}")  # of another machine
    assert not process_identity.is_dead("")
    assert not process_identity.is_dead(f"{machine}-x-{start}")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_process_that_ended_is_dead_before_its_parent_asks_for_its_status():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_identity.started(process.pid) is None


@pytest.fixture(params=[FileNotFoundError, PermissionError])
def no_proc(request, monkeypatch):
    """A system without /proc, or one that hides it."""

    class NoProc:
        def __init__(self, path):
            pass

        def read_text(self):
            raise request.param

        def exists(self):
            return False

    monkeypatch.setattr(process_identity, "Path", NoProc)


def test_without_proc_a_process_is_alive_or_not(no_proc, monkeypatch, dead_pid):
    signals = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: signals.append(number))
    try:
        assert process_identity.started(os.getpid()) == "running"
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signals == []
    assert process_identity.started(dead_pid) is None
    assert process_identity.started(10**30) is None

    def refuse(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)  # a process of another user
    assert process_identity.started(1) == "running"


def test_without_proc_the_host_name_alone_names_the_machine(no_proc, monkeypatch):
    def refuse(path):
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", refuse)
    assert process_identity.host.__wrapped__() == socket.gethostname()
    assert process_identity.boot.__wrapped__() == ""
