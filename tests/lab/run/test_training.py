"""One run: against a loop written by hand, and against itself after being killed."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toy
from torch import nn

import gradcent
from gradcent_lab.data import random_streams
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import OFF, ON, Arm, Numerics, RunConfig
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.experiment.study import Task
from gradcent_lab.run import accelerator as runtime
from gradcent_lab.run import run_clock
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.progress import SilentProgress
from gradcent_lab.run.run_one import run_task
from gradcent_lab.run.scheduler import run_pairs
from gradcent_lab.store import records as store

TIMES = {"seconds", "samples_per_second"}


def numbers(record):
    return [{k: v for k, v in line.items() if k not in TIMES} for line in record.curves]


@pytest.mark.parametrize("arm", [OFF, ON], ids=lambda arm: arm.name)
def test_equals_a_loop_written_by_hand(tmp_path, arm):
    (record,) = run_pairs(toy.experiment(), [arm], [3], tmp_path)

    experiment = toy.experiment()
    random_streams.seed_everything(3, "weights")
    model = toy.network()
    optimizer = toy.sgd(model.parameters())
    if arm.on:
        gradcent.attach(optimizer, model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 8, 0.5)
    random_streams.seed_everything(3, "training", 0)
    lines = []
    for epoch in range(4):
        model.train()
        order = torch.randperm(70, generator=random_streams.generator(3, "order", epoch)).tolist()
        losses, hits, lr = [], 0, optimizer.param_groups[0]["lr"]
        for step in range(4):
            samples = []
            for index in order[16 * step : 16 * step + 16]:
                with random_streams.seeded(3, "sample", epoch, index):
                    samples.append(experiment.train_data[index])
            x, y = torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
            hits += int((output.argmax(1) == y).sum())
        model.eval()
        x, y = experiment.eval_data.tensors
        with torch.no_grad():
            output = model(x)
        lines.append(
            {
                "epoch": epoch + 1,
                "train_loss": sum(losses) / 4,
                "train_metric": 100 * hits / 64,
                "eval_loss": float(nn.functional.cross_entropy(output, y)),
                "eval_metric": 100 * float((output.argmax(1) == y).float().mean()),
                "lr": lr,
            }
        )
    for line, expected in zip(numbers(record), lines, strict=True):
        assert (line.pop("steps"), len(line.pop("batches"))) == (4, 32)
        assert line == pytest.approx(expected, rel=1e-6)
    best = max(line["eval_metric"] for line in lines)
    assert record.best == pytest.approx(best)
    assert record.last == pytest.approx(lines[-1]["eval_metric"])


def test_same_seed_same_bits_and_arms_share_the_start(tmp_path):
    one = run_pairs(toy.experiment(), [OFF, ON], [0, 1], tmp_path / "a")
    two = run_pairs(toy.experiment(), [OFF, ON], [0, 1], tmp_path / "b")
    assert [numbers(r) for r in one] == [numbers(r) for r in two]
    by_seed = {seed: {r.initial_weights for r in one if r.seed == seed} for seed in (0, 1)}
    assert all(len(hashes) == 1 for hashes in by_seed.values())
    assert by_seed[0] != by_seed[1]
    assert numbers(one[0]) != numbers(one[1])  # and centralization does something


@pytest.mark.parametrize(("drop", "share"), [(False, 8 / 40), (True, 0.0)])
def test_the_last_partial_evaluation_batch_counts_unless_it_is_dropped(tmp_path, drop, share):
    """Of 40 images in batches of 16, the released loaders leave out the last 8; only those have label 3 here."""
    made = toy.one_epoch()
    images, labels = made.eval_data.tensors
    labels = torch.cat([labels[:32].clamp(max=2), torch.full((8,), 3)])
    made = replace(
        made,
        eval_data=torch.utils.data.TensorDataset(images, labels),
        metric=lambda output, target: target == 3,
        eval_drop_last=drop,
    )
    (record,) = run_pairs(made, [OFF], [0], tmp_path)
    assert record.last == pytest.approx(100 * share)


def test_lower_is_better_takes_the_smallest(tmp_path):
    experiment = replace(
        toy.experiment(),
        metric=lambda output, target: nn.functional.cross_entropy(output, target, reduction="none"),
        metric_name="loss",
        higher_is_better=False,
    )
    (record,) = run_pairs(experiment, [OFF], [0], tmp_path)
    values = [line["eval_metric"] for line in record.curves]
    assert record.best == min(values)
    assert record.best_epoch == values.index(min(values)) + 1
    assert record.curves[0]["eval_metric"] == pytest.approx(record.curves[0]["eval_loss"])


def test_every_iteration_is_observed(tmp_path):
    experiment = replace(toy.experiment(), observe=lambda model: {"norm": float(model[0].weight.grad.norm())})
    (record,) = run_pairs(experiment, [OFF], [0], tmp_path)
    rows = record.iterations()
    assert [row["iteration"] for row in rows] == list(range(16))
    assert all(row["norm"] > 0 for row in rows)


def test_ready_batches_train_too(tmp_path):
    loader = torch.utils.data.DataLoader(toy.Noisy(70, 1), batch_size=16, shuffle=True, drop_last=True)
    experiment = replace(toy.experiment(), train_data=loader)
    records = run_pairs(experiment, [OFF, Arm("again")], [0], tmp_path)
    assert numbers(records[0]) == numbers(records[1])


@pytest.mark.parametrize("numerics", [Numerics(channels_last=True), Numerics(precision="bf16")], ids=str)
def test_other_numerics_run_and_are_other_runs(tmp_path, numerics):
    (plain,) = run_pairs(toy.experiment(), [ON], [0], tmp_path)
    (other,) = run_pairs(toy.experiment(), [ON], [0], tmp_path, numerics=numerics)
    assert plain.path != other.path
    assert other.curves[-1]["train_loss"] == pytest.approx(plain.curves[-1]["train_loss"], rel=0.2)


def test_divergence_is_a_result_of_one_line(tmp_path):
    def blow_up(params):
        return torch.optim.SGD(params, lr=1e20)

    experiment = replace(toy.experiment(), optimizer=blow_up)
    (record,) = run_pairs(experiment, [OFF], [0], tmp_path)
    assert re.search(r"toy toy off seed 0: the loss became .* in epoch 1", record.diverged)
    assert "\n" not in record.diverged
    assert math.isnan(record.last)
    (stored,) = store.load(tmp_path)
    assert stored.diverged == record.diverged
    assert store.unfinished(tmp_path, "toy") == []


def test_an_evaluation_that_is_no_number_is_a_divergence(tmp_path):
    experiment = replace(toy.experiment(), metric=lambda output, target: output.sum(1) * math.nan)
    (record,) = run_pairs(experiment, [OFF], [0], tmp_path)
    assert "accuracy became nan in epoch 1" in record.diverged


def test_both_arms_see_the_same_batches(tmp_path):
    records = run_pairs(toy.experiment(), [OFF, ON], [0, 1], tmp_path)
    hashes = [[line["batches"] for line in record.curves] for record in records]
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3]
    assert hashes[0] != hashes[2]
    assert len(set(hashes[0])) == len(hashes[0])  # every epoch has an order of its own


def test_a_model_that_ignores_the_seed_is_found_out(tmp_path):
    sizes = iter((1.0, 2.0))

    def model():
        made = toy.plain_network()
        with torch.no_grad():
            made[0].weight.fill_(next(sizes))
        return made

    described = {"name": "toy"}
    with pytest.raises(UserError, match="started from different weights"):
        run_pairs(replace(toy.experiment(), model=model, settings=described), [OFF, ON], [0], tmp_path)


def test_stopped_in_every_epoch_and_resumed(tmp_path):
    """Interrupted from inside after each epoch, in fresh sessions: the same bits as in one go."""
    options = Options(checkpoint_seconds=0.0)
    (whole,) = run_pairs(toy.experiment(), [ON], [0], tmp_path / "whole", options=options)

    class Stop(SilentProgress):
        def __init__(self, epoch):
            self.epoch = epoch

        def epoch_done(self, config, metrics):
            if metrics["epoch"] == self.epoch:
                raise KeyboardInterrupt

    for epoch in (1, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            run_pairs(toy.experiment(), [ON], [0], tmp_path / "b", options=options, progress=Stop(epoch))
    (resumed,) = run_pairs(toy.experiment(), [ON], [0], tmp_path / "b", options=options)
    assert numbers(resumed) == numbers(whole)
    assert not (resumed.path / "checkpoint.pt").exists()


def test_the_times_of_a_run_are_those_of_all_its_parts(tmp_path, monkeypatch):
    """On a clock that runs 1 s, and 0.5 s of the processor, per pass: 4 epochs of 4 training and 2 test batches."""
    passes = []
    clock = SimpleNamespace(monotonic=lambda: 1.0 * len(passes), process_time=lambda: 0.5 * len(passes))
    monkeypatch.setattr(run_clock, "time", clock)

    def experiment(last_pass=None):
        def forward(model, x, _):
            if len(passes) == last_pass:
                raise KeyboardInterrupt
            passes.append(1)
            return model(x)

        return replace(toy.experiment(), forward=forward, eval_batch_size=20, settings={"name": "toy"})

    options = Options(checkpoint_seconds=0.0)  # a checkpoint after every step
    (whole,) = run_pairs(experiment(), [ON], [0], tmp_path / "whole", options=options)
    assert (whole.wall_seconds, whole.processor_seconds) == (24.0, 12.0)
    for passes_before in (3, 2, 11):
        stopped = experiment(len(passes) + passes_before)
        with pytest.raises(KeyboardInterrupt):
            run_pairs(stopped, [ON], [0], tmp_path / "parts", options=options)
    (resumed,) = run_pairs(experiment(), [ON], [0], tmp_path / "parts", options=options)
    assert numbers(resumed) == numbers(whole)
    assert (resumed.wall_seconds, resumed.processor_seconds) == (24.0, 12.0)


def test_a_measurement_has_its_times(tmp_path):
    def measure(seed, arm):
        began = time.process_time()
        while time.process_time() - began < 0.05:
            pass
        time.sleep(0.2)
        return 1.0, [{"value": 1.0}]

    config = RunConfig("measured", "cell", OFF, 0, "own", {})
    task = Task(config, lambda: Measurement(measure, "ms", higher_is_better=False))
    record = run_task(task, tmp_path, Options(), SilentProgress())
    assert record.wall_seconds >= 0.25
    assert 0.05 <= record.processor_seconds < record.wall_seconds


def test_what_a_killed_process_was_writing_goes_when_the_run_is_finished(tmp_path):
    left = [tmp_path / f".{name}.0a1b2c3d.tmp" for name in ("metrics.jsonl", "checkpoint.pt")]
    other = tmp_path / ".lock.0a1b2c3d.tmp"  # somebody's who is alive
    for each in (*left, other):
        each.write_text("half")
    store.finish(tmp_path, {"best": 1.0}, [{"epoch": 1}])
    assert sorted(each.name for each in tmp_path.iterdir()) == [other.name, "metrics.jsonl", "result.json"]


@pytest.mark.slow
def test_killed_at_random_points_and_resumed(tmp_path):
    """kill -9, again and again, until it is through: nothing lost, the same bits."""
    here = Path(__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(here), *sys.path])

    def start(root):
        return subprocess.Popen(
            [sys.executable, str(here / "toy.py"), str(root), "dropout", "slow"], env=environment
        )

    assert start(tmp_path / "whole").wait(120) == 0
    random.seed(0)
    kills = 0
    broken = tmp_path / "broken"
    while kills < 3:
        process = start(broken)
        began = time.monotonic()
        while not list(broken.glob("toy/*/checkpoint.pt")) and process.poll() is None:
            time.sleep(0.005)
            assert time.monotonic() - began < 60
        time.sleep(random.uniform(0.0, 0.25))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills > 0
    assert start(broken).wait(120) == 0
    whole, resumed = store.load(tmp_path / "whole"), store.load(broken)
    assert len(whole) == len(resumed) == 2
    for one, two in zip(whole, resumed, strict=True):
        assert numbers(one) == numbers(two)
        assert one.iterations() == two.iterations()
        assert sorted(p.name for p in two.path.iterdir()) == [
            "config.json",
            "environment.json",
            "iterations.jsonl",
            "metrics.jsonl",
            "result.json",
        ]


def test_damaged_checkpoint_is_named(tmp_path):
    class Stop(SilentProgress):
        def epoch_done(self, config, metrics):
            raise KeyboardInterrupt

    options = Options(checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        run_pairs(toy.experiment(), [OFF], [0], tmp_path, options=options, progress=Stop())
    (path,) = tmp_path.glob("toy/*/checkpoint.pt")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged: delete it"):
        run_pairs(toy.experiment(), [OFF], [0], tmp_path, options=options)
    path.unlink()
    assert math.isfinite(run_pairs(toy.experiment(), [OFF], [0], tmp_path, options=options)[0].last)


def test_runs_where_torch_has_frozen_its_global_flags(monkeypatch):
    """As after disable_global_flags, which PyTorch's own test modules call when they are imported."""
    monkeypatch.setattr(torch.backends, "__allow_nonbracketed_mutation_flag", False)
    with runtime.deterministic():
        assert torch.get_deterministic_debug_mode() == 1
    assert torch.get_deterministic_debug_mode() == 0
