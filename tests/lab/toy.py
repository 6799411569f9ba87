"""A tiny experiment that other processes can import: two noisy classes of 8×8 images, a conv net, dropout."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from gradcent_lab.experiment.spec import Experiment


class Noisy(Dataset):
    """A map-style dataset with random augmentation."""

    def __init__(self, n: int, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 4, (n,), generator=g)
        self.x = torch.randn(n, 1, 8, 8, generator=g) + self.y[:, None, None, None].float()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int):
        x = self.x[index]
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x + 0.1 * torch.randn(x.shape), self.y[index]


def correct(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.argmax(1) == target


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(288, 4),
    )


def plain_network() -> nn.Module:
    """Without dropout, whose draws depend on how the batch is cut."""
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3)


def halve(optimizer, steps):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2 * steps, 0.5)


def experiment() -> Experiment:
    evaluation = Noisy(40, 2)
    return Experiment(
        name="toy",
        model=network,
        train_data=Noisy(70, 1),
        eval_data=TensorDataset(evaluation.x, evaluation.y),
        loss=nn.functional.cross_entropy,
        metric=correct,
        optimizer=sgd,
        schedule=halve,
        epochs=4,
        batch_size=16,
    )


def one_epoch() -> Experiment:
    return replace(experiment(), epochs=1)


def slow_experiment() -> Experiment:
    return replace(experiment(), observe=slowly)


def main() -> None:
    """`python toy.py ROOT [fsdp] [stop]`: both arms of one seed, in one process or as a launch of several."""
    import os
    import sys

    from gradcent_lab.experiment.run_config import OFF, ON
    from gradcent_lab.run.accelerator import Options
    from gradcent_lab.run.progress import SilentProgress
    from gradcent_lab.run.scheduler import run_pairs

    class Stop(SilentProgress):
        def epoch_done(self, config, metrics):
            if "stop" in sys.argv and metrics["epoch"] == 2 and config.arm.on:
                os._exit(9)

    options = Options(checkpoint_seconds=0.0)
    if "fsdp" in sys.argv:
        pretend_gpus()
    made = experiment() if "dropout" in sys.argv else replace(experiment(), model=plain_network)
    if "slow" in sys.argv:
        made = replace(made, observe=slowly)
    run_pairs(made, [OFF, ON], [0], sys.argv[1], options=options, progress=Stop())


def slowly(model: nn.Module) -> dict[str, float]:
    """A step that takes its time, so that a kill falls into the middle of a run."""
    time.sleep(0.02)
    return {"norm": float(model[0].weight.grad.norm())}


def pretend_gpus() -> None:
    """Accelerate offers FSDP for GPUs only; let it take gloo on the CPU for them."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    import gradcent_lab.run.accelerator
    import gradcent_lab.run.run_one

    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    gradcent_lab.run.accelerator.on_cpu = gradcent_lab.run.run_one.on_cpu = lambda options: False


if __name__ == "__main__":
    main()
