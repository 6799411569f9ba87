"""`--track` with real local trackers, each in this environment: what was logged is read back from their files."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp(prefix="trackio-")  # read when trackio is imported
pytest.importorskip("trackio")
pytestmark = pytest.mark.filterwarnings("ignore")  # the trackers' own
LAB = Path(__file__).resolve().parents[1] / "lab"


def run_compare(monkeypatch: pytest.MonkeyPatch, folder: Path, tracker: str) -> dict[int, float]:
    """Compare with a tracker; return the last metric of each seed without GC, read from the lab's own files."""
    from gradcent_lab.cli import main

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(LAB), *sys.path])
    words = ["compare_fixtures:toy", "--seeds", "1", "--track", tracker, "--out", "out"]
    assert main(["compare", *words]) == 0
    found = {}
    for path in Path("out/runs/toy").iterdir():
        config = json.loads((path / "config.json").read_text())
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        found[config["arm"]["name"]] = lines[-1]["eval_metric"]
    return found


def check(verified: Any, package: str, what: str, expected: dict[Any, float], logged: list[float]) -> None:
    worst = max(min(abs(value - other) for other in logged) for value in expected.values())
    verified(f"compare --track {package}", package, what, worst, 1e-6)


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: Any) -> None:
    expected = run_compare(monkeypatch, tmp_path, "trackio")
    logged: list[float] = []
    names: set[str] = set()
    for path in Path(os.environ["TRACKIO_DIR"]).rglob("*.db"):
        with sqlite3.connect(path) as connection:
            for name, text in connection.execute("SELECT run_name, metrics FROM metrics"):
                document = json.loads(text)
                names.add(name)
                if "eval_metric" in document:
                    logged.append(document["eval_metric"])
    assert names == {"off seed 0", "on seed 0"}
    check(verified, "trackio", "both runs of a pair, read back from its database", expected, logged)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: Any) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    expected = run_compare(monkeypatch, tmp_path, "mlflow")
    files = list((tmp_path / "mlflow").rglob("metrics/eval_metric"))
    logged = [float(line.split()[1]) for path in files for line in path.read_text().splitlines()]
    check(verified, "mlflow-skinny", "both runs of a pair, read back from its files", expected, logged)


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: Any) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    expected = run_compare(monkeypatch, tmp_path, "wandb")
    files = list(tmp_path.rglob("*.wandb"))
    assert len(files) == 2, wandb.__version__
    text = b"".join(path.read_bytes() for path in files)
    logged = [value for value in expected.values() if repr(value).encode() in text]
    check(
        verified, "wandb", "both runs of a pair, offline, read back from its files", expected, logged or [1e9]
    )
