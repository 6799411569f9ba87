"""One run: the training loop, on Hugging Face accelerate.

The same code trains on the CPU, one GPU, or several by DDP or FSDP2 (`accelerate launch` or `torchrun`).
Best and last epoch are both reported: the paper's ImageNet errors are those of the best epoch.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradcent_lab.data import random_streams
from gradcent_lab.data.batch_hash import BATCHES_PER_EPOCH, hash_batch
from gradcent_lab.data.batches import Batch, Feed
from gradcent_lab.errors import Diverged, UserError
from gradcent_lab.experiment.run_config import RunConfig
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.experiment.weights import weights_hash
from gradcent_lab.run import checkpoint, stop_signal
from gradcent_lab.run.accelerator import Options, deterministic, make_accelerator, memory
from gradcent_lab.run.batch_norm import batch_norms, recalibrated
from gradcent_lab.run.controls import GradientControl
from gradcent_lab.run.epoch_metrics import Meters
from gradcent_lab.run.example_plan import attach_options
from gradcent_lab.run.position import Position
from gradcent_lab.run.rank_agreement import RankAgreement
from gradcent_lab.run.run_clock import RunClock
from gradcent_lab.run.stop_signal import Terminated
from gradcent_lab.store.atomic_files import write_lines

LOOK = 50  # steps between reads of a GPU's loss; every read waits for the GPU


def train(
    experiment: Experiment,
    config: RunConfig,
    folder: Path,
    *,
    options: Options,
    clock: RunClock,
    epoch_done: Callable[[Mapping[str, Any]], None],
    before_write: Callable[[], None],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train to the end, from the checkpoint if there is one; return the result and the curves."""
    with deterministic(), stop_signal.deferred():
        session = _Session(experiment, config, folder, options, clock)
        try:
            return session.run(epoch_done, before_write)
        finally:
            session.close()


class _Session:
    """The prepared objects of one run."""

    def __init__(
        self, experiment: Experiment, config: RunConfig, folder: Path, options: Options, clock: RunClock
    ) -> None:
        self.experiment, self.config, self.folder, self.options = experiment, config, folder, options
        self.clock = clock
        self.accelerator = make_accelerator(config, options, folder)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        self.agreement = RankAgreement(world, rank)
        feed = {"seed": config.seed, "rank": rank, "world": world, "workers": options.loader_workers}
        size = experiment.batch_size
        self.train_feed = Feed(
            experiment.train_data, size, train=True, drop_last=experiment.drop_last, **feed
        )
        size = experiment.eval_batch_size or size
        drop = experiment.eval_drop_last
        self.eval_feed = Feed(experiment.eval_data, size, train=False, drop_last=drop, **feed)

        random_streams.seed_everything(config.seed, "weights")
        model = experiment.model()
        self.initial_weights = weights_hash(model)
        if config.numerics.channels_last:
            model = model.to(memory_format=torch.channels_last)
        params = experiment.parameters(model) if experiment.parameters else model.parameters()
        attach = config.arm.attach
        if attach is not None:
            attach = attach_options(model, attach, self._first_batch, experiment.forward)
        prepared = self.accelerator.prepare(model, experiment.optimizer(params))
        self.model: nn.Module = prepared[0]
        self.wrapped = prepared[1]
        self.bare: nn.Module = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        self.optimizer = getattr(self.wrapped, "optimizer", self.wrapped)
        if attach is not None:
            # after `prepare`, because FSDP2 replaces the parameters by sharded ones
            import gradcent

            gradcent.attach(self.optimizer, self.bare, **attach)
        self.control = None
        if config.arm.control is not None:
            self.control = GradientControl(
                config.arm.control, self.optimizer, self.bare, seed=config.seed, attach=attach is not None
            )
        self.scheduler = (
            experiment.schedule(self.optimizer, self.train_feed.steps) if experiment.schedule else None
        )
        self._last_write = time.monotonic()
        random_streams.seed_everything(config.seed, "training", rank)

    def run(
        self, epoch_done: Callable[[Mapping[str, Any]], None], before_write: Callable[[], None]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        with self.agreement.block():
            position, meters = self._resume()
        self._last_write = time.monotonic()
        try:
            return self._train(position, meters, epoch_done, before_write)
        except Diverged as error:
            return position.result(self.experiment, diverged=str(error)), position.curves

    def _train(
        self,
        position: Position,
        meters: Meters,
        epoch_done: Callable[[Mapping[str, Any]], None],
        before_write: Callable[[], None],
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        def write_if_due(step: int) -> None:
            stop = self.agreement.stop_requested
            if stop or self._due(step):
                with self.agreement.block():
                    before_write()
                    self._save(position, meters)
            if stop:
                raise Terminated

        while position.epoch < self.experiment.epochs:
            began = time.monotonic() - position.seconds
            self.model.train()
            for batch in self._batches(self.train_feed.epoch(position.epoch, position.step)):
                self._train_step(batch, position, meters)
                position.seconds = time.monotonic() - began
                write_if_due(position.step)
            self._close_epoch(position, meters)
            meters = Meters(self.accelerator.device)
            write_if_due(0)
            with self.agreement.block():
                if self.accelerator.is_main_process:
                    before_write()
                    write_lines(self.folder / "metrics.jsonl", position.curves)
                epoch_done(position.curves[-1])
        with self.agreement.block():
            before_write()
            if position.iterations and self.accelerator.is_main_process:
                write_lines(self.folder / "iterations.jsonl", position.iterations)
        if self.experiment.closing is not None:
            self.model.eval()
            self.experiment.closing(self.model, self.folder if self.accelerator.is_main_process else None)
        return position.result(self.experiment), position.curves

    def close(self) -> None:
        """Close the trackers and free what accelerate holds."""
        if self.options.trackers:
            self.accelerator.end_training()
        if self.accelerator.device.type != "cpu":
            self.accelerator.free_memory()  # garbage collection takes longer than a short run on the CPU

    def _train_step(self, batch: Batch, position: Position, meters: Meters) -> None:
        if position.step == 0:
            position.lr = float(self.optimizer.param_groups[0]["lr"])
            position.batches = ""
        if position.step < BATCHES_PER_EPOCH:
            position.batches += hash_batch(batch.inputs, batch.targets)
        with self.agreement.block():
            loss, output, targets = self._forward(batch)
            with torch.no_grad():
                meters.add(loss.detach(), self.experiment.metric(output, targets), batch.count)
            if self.accelerator.device.type == "cpu" or (position.step + 1) % LOOK == 0:
                self._check(meters.loss_sum(), position.epoch, position.step + 1)
        self.accelerator.backward(loss * batch.weight if batch.weight != 1.0 else loss)
        if self.experiment.observe is not None:
            observed = {key: float(value) for key, value in self.experiment.observe(self.bare).items()}
            position.iterations.append({"iteration": len(position.iterations), **observed})
        if self.experiment.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.experiment.clip)
        if self.control is not None:
            self.control.change_gradients()
        self.wrapped.step()
        self.wrapped.zero_grad()
        if self.scheduler is not None and not self.accelerator.optimizer_step_was_skipped:
            self.scheduler.step()
        position.step += 1

    def _close_epoch(self, position: Position, meters: Meters) -> None:
        """Evaluate, add the epoch's line to the curves and move on to the next."""
        with self.agreement.block():
            self._check(meters.loss_sum(), position.epoch, position.step)
        train, steps = meters.mean(self.accelerator), position.step
        samples = position.step * self.experiment.batch_size
        if self.train_feed.samples is not None:
            samples = min(samples, self.train_feed.samples)
        line = {
            "epoch": position.epoch + 1,
            "train_loss": train[0],
            "train_metric": train[1],
            **self._evaluate_epoch(position.epoch),
            "lr": position.lr,
            "steps": steps,
            "batches": position.batches,
            "seconds": round(position.seconds, 3),
            "samples_per_second": round(samples / max(position.seconds, 1e-9), 1),
        }
        if self.experiment.evaluate is not None:
            line |= {"seconds_per_step": round(position.seconds / max(steps, 1), 4), "memory_mib": memory()}
        with self.agreement.block():
            if not math.isfinite(line["eval_metric"]):
                raise Diverged(
                    f"{self.config.label}: {self.experiment.metric_name} became {line['eval_metric']} in epoch "
                    f"{position.epoch + 1}: lower the learning rate, or check the data and the metric"
                )
        position.curves.append(line)
        position.total_seconds += position.seconds
        position.epoch, position.step, position.seconds = position.epoch + 1, 0, 0.0
        if self.options.trackers:
            self.accelerator.log({k: v for k, v in line.items() if k != "epoch"}, step=line["epoch"])

    def _evaluate_epoch(self, epoch: int) -> dict[str, Any]:
        """Evaluate, with BatchNorm statistics as the experiment asks; in the last epoch also the other way.

        The second evaluation is the control that tells stale running statistics from an effect of the weights.
        """
        last = epoch + 1 == self.experiment.epochs
        wanted = self.experiment.recalibrate_bn
        several = self.accelerator.num_processes > 1
        if not batch_norms(self.bare) or not (wanted or (last and not several)):
            return self._evaluate()
        with self._recalibrated_batch_norm():
            estimated = self._evaluate()
        if not last:
            return estimated
        running = self._evaluate()
        line, control = (estimated, running) if wanted else (running, estimated)
        return {**line, "eval_metric_bn_control": control["eval_metric"]}

    @contextlib.contextmanager
    def _recalibrated_batch_norm(self) -> Iterator[None]:
        def forward(batch: Batch) -> Any:
            inputs, targets = self._to_device(batch)
            custom = self.experiment.forward
            return self.bare(inputs) if custom is None else custom(self.bare, inputs, targets)

        def average(values: torch.Tensor) -> torch.Tensor:
            mean: torch.Tensor = self.accelerator.reduce(values, "mean")
            return mean

        several = self.accelerator.num_processes > 1
        with (
            random_streams.seeded(self.config.seed, "recalibrate"),
            recalibrated(self.bare, self.train_feed.epoch(0), forward, average if several else None),
        ):
            yield

    @torch.no_grad()
    def _evaluate(self) -> dict[str, Any]:
        self.model.eval()
        if self.experiment.evaluate is not None:
            batches = self._batches(self.eval_feed.epoch(0))
            named = self.experiment.evaluate(self.model, batches, self.accelerator)
            headline = named[self.experiment.metric_name]
            return {"train_metric": None, "eval_loss": None, "eval_metric": headline, **named}
        meters = Meters(self.accelerator.device)
        for batch in self._batches(self.eval_feed.epoch(0)):
            with self.agreement.block():
                loss, output, targets = self._forward(batch)
                meters.add(loss, self.experiment.metric(output, targets), batch.count)
        return dict(zip(("eval_loss", "eval_metric"), meters.mean(self.accelerator), strict=True))

    def _batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches; one that a process cannot read is an error in all processes."""
        while True:
            with self.agreement.block():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _first_batch(self) -> Batch:
        with self.agreement.block():
            batch = next(iter(self.train_feed.epoch(0)), None)
            if batch is None:
                raise UserError(f"{self.config.label}: the training data has no batches")
            return batch

    def _to_device(self, batch: Batch) -> tuple[Any, Any]:
        from accelerate.utils import send_to_device

        inputs = send_to_device(batch.inputs, self.accelerator.device, non_blocking=True)
        targets = send_to_device(batch.targets, self.accelerator.device, non_blocking=True)
        if isinstance(inputs, torch.Tensor) and inputs.dim() == 4:
            # set explicitly: the memory format of the dataset must not choose the kernels
            last = self.config.numerics.channels_last
            inputs = inputs.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        if self.control is not None:
            inputs = self.control.centre(inputs)
        return inputs, targets

    def _forward(self, batch: Batch) -> tuple[torch.Tensor, Any, Any]:
        inputs, targets = self._to_device(batch)
        forward = self.experiment.forward
        output = self.model(inputs) if forward is None else forward(self.model, inputs, targets)
        return self.experiment.loss(output, targets), output, targets

    def _check(self, loss: float, epoch: int, step: int) -> None:
        if not math.isfinite(loss):
            raise Diverged(
                f"{self.config.label}: the loss became {loss} in epoch {epoch + 1}, step "
                f"{step}: lower the learning rate, or check the data and the loss"
            )

    def _due(self, step: int) -> bool:
        """Whether to write a checkpoint now. Several processes must agree, so they check every LOOK steps."""
        several = self.accelerator.num_processes > 1
        if several and step % LOOK:
            return False
        due = time.monotonic() - self._last_write >= self.options.checkpoint_seconds
        if several:
            from accelerate.utils import broadcast_object_list

            due = broadcast_object_list([due])[0]
        return due

    def _save(self, position: Position, meters: Meters) -> None:
        states = (self.bare, self.optimizer, self.scheduler)
        path, run_id = self.folder / "checkpoint.pt", self.config.run_id
        position.wall_seconds, position.processor_seconds = self.clock.read()
        checkpoint.save(path, run_id, self.accelerator, *states, vars(position), meters.state())
        self._last_write = time.monotonic()

    def _resume(self) -> tuple[Position, Meters]:
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            fresh = Position(0, 0, 0.0, [], [], 0.0, 0.0, self.initial_weights)
            return fresh, Meters(self.accelerator.device)
        states = (self.bare, self.optimizer, self.scheduler)
        kept, sums = checkpoint.load(path, self.config.run_id, self.accelerator, *states)
        try:
            position = Position(**kept)
            problem = position.problem(self.experiment.epochs, self.train_feed.steps)
            meters = Meters(self.accelerator.device, sums)
        except (TypeError, RuntimeError) as error:
            raise checkpoint.damaged(path, error) from error
        if problem:
            raise checkpoint.damaged(path, problem)
        if position.initial_weights != self.initial_weights:
            raise UserError(
                f"{path} started from other initial weights than this code builds: delete it to start again"
            )
        self.clock.add(position.wall_seconds, position.processor_seconds)
        return position, meters
