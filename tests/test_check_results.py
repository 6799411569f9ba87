"""`make check-results`: a run that repeats, one whose numbers were changed, one of another machine."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def check():
    pytest.importorskip("scipy", reason="needs the lab: pip install 'gradcent[lab]'")
    spec = importlib.util.spec_from_file_location("check_results", ROOT / "tools" / "check_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stored(tmp_path):
    from gradcent_lab import recipes
    from gradcent_lab.run.scheduler import run_study

    run_study(recipes.get("fig2").study("smoke"), tmp_path)
    return tmp_path


def rewrite(root, change):
    """Change the stored runs and seal them again, as someone who alters results would."""
    from gradcent_lab.store.atomic_files import read_json, read_lines, write_json, write_lines
    from gradcent_lab.store.integrity import seal

    for path in sorted((root / "fig2").iterdir()):
        curves, environment = change(read_lines(path / "metrics.jsonl"), read_json(path / "environment.json"))
        write_lines(path / "metrics.jsonl", curves)
        write_json(path / "environment.json", environment)
        write_json(path / "result.json", seal(path, read_json(path / "result.json"), {}))


def changed(curves, environment):
    name = next(key for key, value in curves[-1].items() if isinstance(value, float))
    return [*curves[:-1], {**curves[-1], name: curves[-1][name] + 1e-12}], environment


def test_committed_runs_repeat_and_altered_ones_are_noticed(check, stored, capsys):
    threads = torch.get_num_threads()
    arguments = ["--root", str(stored), "--runs", "2", "--seed", "1"]
    try:
        assert check.main(arguments) == 0
        assert capsys.readouterr().out.count("equal to the last bit") == 2
        rewrite(stored, changed)
        assert check.main(arguments) == 1
        printed = capsys.readouterr().out
        assert printed.count("DIFFERS on the same kind of machine") == 2
        assert "then," in printed
        rewrite(stored, lambda curves, machine: (curves, {**machine, "instruction_set": "AVX2000"}))
        assert check.main(arguments) == 0
        assert "another kind of machine (instruction_set: AVX2000 then" in capsys.readouterr().out
    finally:
        torch.set_num_threads(threads)


def test_a_run_whose_configuration_changed_its_name_is_refused(check, stored):
    from gradcent_lab import store
    from gradcent_lab.errors import UserError

    record = store.load(stored)[0]
    with pytest.raises(UserError, match="now gives the name"):
        check.repeat(replace(record, config={**record.config, "seed": 99}), stored, None)
