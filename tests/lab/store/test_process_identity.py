"""Which process a file belongs to, with and without /proc."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_without_proc_a_process_is_alive_or_not(monkeypatch, dead_pid):
    class NoProc:
        def __init__(self, path):
            pass

        def read_text(self):
            raise FileNotFoundError

        def exists(self):
            return False

    monkeypatch.setattr(process_identity, "Path", NoProc)
    assert process_identity.started(os.getpid()) == "running"
    assert process_identity.started(dead_pid) is None
    assert process_identity.started(10**30) is None
