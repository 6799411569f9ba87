"""Experiments, right and wrong, for the tests of `gradcent compare`."""

import dataclasses
import json
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradcent_lab.experiment.spec import Experiment

NUMBER = 3


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def correct(output, target):
    return output.argmax(1) == target


def toy():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(128, 8, generator=random)
    y = (x[:, 0] > x[:, 1]).long()
    return Experiment(
        name="toy",
        model=network,
        train_data=TensorDataset(x, y),
        eval_data=TensorDataset(x, y),
        loss=nn.functional.cross_entropy,
        metric=correct,
        metric_name="accuracy, %",
        optimizer=sgd,
        epochs=2,
        batch_size=32,
    )


def diverging():
    return dataclasses.replace(toy(), name="diverging", optimizer=lambda p: torch.optim.SGD(p, lr=1e25))


def nothing_returned():
    return None


def a_dictionary():
    return {"model": network}


def needs_an_argument(width):
    return toy()


def raising():
    raise RuntimeError("the data\nis not here")


def instance():
    return dataclasses.replace(toy(), model=network())


def no_epochs():
    return dataclasses.replace(toy(), epochs=0)


def wrong_shape():
    return dataclasses.replace(toy(), model=lambda: nn.Linear(5, 2))


def words_for_a_metric():
    return dataclasses.replace(toy(), metric=lambda output, target: "good")


def loss_per_sample():
    return dataclasses.replace(
        toy(), loss=lambda output, target: nn.functional.cross_entropy(output, target, reduction="none")
    )


def detached_loss():
    return dataclasses.replace(toy(), loss=lambda output, target: torch.tensor(1.0))


class Missing(TensorDataset):
    def __getitem__(self, index):
        raise KeyError("no such row")


def broken_data():
    return dataclasses.replace(toy(), eval_data=Missing(torch.zeros(4, 8)))


def other_weights_every_time():
    def model():
        made = network()
        with torch.no_grad():
            made[0].weight.uniform_(generator=torch.Generator().manual_seed(int(time.time_ns() % 2**31)))
        return made

    return dataclasses.replace(toy(), model=model)


class Late:
    """A metric that fails in the second epoch."""

    calls = 0

    def __call__(self, output, target):
        Late.calls += 1
        if Late.calls > 12:
            raise ValueError("too late")
        return output.argmax(1) == target


def late():
    Late.calls = 0
    return dataclasses.replace(toy(), metric=Late())


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x[:, :2] + self.shift


def nothing_to_centralize():
    return dataclasses.replace(toy(), model=Shift)


def two_rates():
    def optimizer(params):
        first, *rest = params
        return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": rest, "lr": 0.01}])

    return dataclasses.replace(toy(), optimizer=optimizer)


def one_cycle():
    def schedule(optimizer, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2 * steps)

    return dataclasses.replace(toy(), schedule=schedule)


def shared_model():
    model = network()
    return dataclasses.replace(toy(), model=lambda: model)


def fractions():
    return dataclasses.replace(toy(), metric=lambda output, target: (output.argmax(1) == target).float())


def loader():
    data = toy().train_data
    made = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    return dataclasses.replace(toy(), train_data=made)


class ReadsJson(TensorDataset):
    """Fails inside Python's own library."""

    def __getitem__(self, index):
        return json.loads("{")  # the user's line


def broken_json():
    data = ReadsJson(torch.zeros(64, 8))
    return dataclasses.replace(toy(), train_data=data)


def broken_in_a_worker():
    made = torch.utils.data.DataLoader(ReadsJson(torch.zeros(64, 8)), batch_size=16, num_workers=1)
    return dataclasses.replace(toy(), train_data=made)


def torch_raises():
    """The error is raised in torch, called by the user's line."""

    def loss(output, target):
        return nn.CrossEntropyLoss()(output, target[:5])  # the user's line of the loss

    return dataclasses.replace(toy(), loss=loss)


def batch_norm():
    """Running statistics that lag: BatchNorm with a small momentum, two steps in all."""

    def model():
        return nn.Sequential(
            nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16, momentum=0.01), nn.ReLU(), nn.Linear(16, 2)
        )

    return dataclasses.replace(toy(), name="batch-norm", model=model, epochs=2, batch_size=64)


READY = dataclasses.replace(toy(), name="ready")
