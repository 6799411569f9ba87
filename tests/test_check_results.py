"""`make check-results`: a run that repeats, one whose numbers were changed, one of another machine."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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


@pytest.fixture(autouse=True)
def one_thread():
    """The tool sets the threads of the process to 1, as for the committed runs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


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


def arguments(root, *options):
    return ["--root", str(root), "--runs", "2", "--seed", "1", *options]


def test_committed_runs_repeat_and_altered_ones_are_noticed(check, stored, capsys):
    assert check.main(arguments(stored)) == 0
    assert capsys.readouterr().out.count("equal to the last bit") == 2
    rewrite(stored, changed)
    assert check.main(arguments(stored)) == 1
    printed = capsys.readouterr().out
    assert printed.count("DIFFERS on the same kind of machine") == 2
    assert "then," in printed
    rewrite(stored, lambda curves, machine: (curves, {**machine, "instruction_set": "AVX2000"}))
    assert check.main(arguments(stored)) == 0
    assert "another kind of machine (instruction_set: AVX2000 then" in capsys.readouterr().out


def without(environment, key):
    return {name: value for name, value in environment.items() if name != key}


def test_another_processor_is_another_machine_if_the_run_recorded_it(check, stored, capsys):
    rewrite(stored, changed)
    rewrite(stored, lambda curves, machine: (curves, {**machine, "processor": "abacus"}))
    assert check.main(arguments(stored)) == 0
    assert "another kind of machine (processor: abacus then" in capsys.readouterr().out
    rewrite(stored, lambda curves, machine: (curves, without(machine, "processor")))
    assert check.main(arguments(stored)) == 1


def test_a_number_that_is_no_longer_computed_is_noticed(check, stored, capsys):
    rewrite(stored, lambda curves, machine: ([*curves[:-1], {**curves[-1], "old": 0.5}], machine))
    assert check.main(arguments(stored)) == 1
    assert "old, line " in (printed := capsys.readouterr().out)
    assert "0.5 then, missing now" in printed


def test_runs_without_an_instruction_set_are_drawn_only_if_asked_for(check, stored, capsys):
    from gradcent_lab.errors import UserError

    rewrite(stored, changed)
    rewrite(stored, lambda curves, machine: (curves, without(machine, "instruction_set")))
    with pytest.raises(UserError, match="no run that can be repeated and compared"):
        check.main(arguments(stored))
    words = "fig2: 2 runs, recorded no instruction set: a difference cannot be judged"
    assert f"left out: {words}" in capsys.readouterr().out
    assert check.main(arguments(stored, "--unjudged")) == 0
    printed = capsys.readouterr().out
    assert printed.count("differs; recorded no instruction set: a difference cannot be judged") == 2
    assert "left out" not in printed


def test_studies_of_times_are_left_out(check, stored, capsys):
    from gradcent_lab import recipes
    from gradcent_lab.run.scheduler import run_study

    run_study(recipes.get("overhead").study("smoke"), stored)
    assert check.main(["--root", str(stored), "--runs", "9"]) == 0
    printed = capsys.readouterr().out
    assert "left out: overhead: 2 runs, has only times, which do not repeat" in printed
    assert "repeating 2 of 4 runs" in printed
    assert "  overhead, " not in printed


def test_a_repeated_run_with_nothing_to_compare_fails(check, stored, capsys, monkeypatch):
    empty = [{"step": 0, "seconds": 1.0}]
    real = check.repeat
    monkeypatch.setattr(check, "repeat", lambda *args: replace(real(*args), curves=empty))
    assert check.main(arguments(stored)) == 1
    assert capsys.readouterr().out.count("NOTHING to compare") == 2


def test_iterations_are_compared(check, stored, tmp_path):
    """Figure 4 draws iterations.jsonl, not the lines of the epochs."""
    from gradcent_lab import store
    from gradcent_lab.store.atomic_files import write_lines

    run = store.load(stored)[0]
    lines = [{"conv_norm": 1.0, "fc_norm": float("nan")}, {"conv_norm": 2.0, "fc_norm": 0.5}]
    twins = []
    for name, last in (("a", 2.0), ("b", 2.0), ("c", 2.5)):
        folder = tmp_path / name
        folder.mkdir()
        write_lines(folder / "iterations.jsonl", [lines[0], {**lines[1], "conv_norm": last}])
        twins.append(replace(run, path=folder))
    changed, compared = check.differences(twins[0], twins[1])
    assert changed == []
    assert compared == 4 + check.differences(run, run)[1]
    assert check.differences(twins[0], twins[2])[0] == ["conv_norm, iteration 2: 2.0 then, 2.5 now"]
    assert check.differences(twins[0], run)[0] == ["2 iterations then, 0 now"]


def test_every_study_has_the_same_chance(check):
    """A study of 68 runs is not drawn more often than one of 2; no run is drawn twice."""
    runs = [SimpleNamespace(study="many", number=i) for i in range(68)]
    runs += [SimpleNamespace(study="few", number=i) for i in range(2)]
    first = [check.draw(runs, 1, random.Random(seed))[0].study for seed in range(400)]
    assert 150 < first.count("few") < 250
    assert {run.study for run in check.draw(runs, 2, random.Random(0))} == {"many", "few"}
    drawn = check.draw(runs, 100, random.Random(0))
    assert len({(run.study, run.number) for run in drawn}) == len(drawn) == 70


def test_a_run_whose_configuration_changed_its_name_is_refused(check, stored):
    from gradcent_lab import store
    from gradcent_lab.errors import UserError

    record = store.load(stored)[0]
    with pytest.raises(UserError, match="now gives the name"):
        check.repeat(replace(record, config={**record.config, "seed": 99}), stored, None)
