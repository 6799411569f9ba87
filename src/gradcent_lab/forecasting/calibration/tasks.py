"""The tasks of the calibration: a network, data and an optimizer each, in families.

`expected` is what theory says before anything is trained: "nothing" where the inputs of most layers are
centered by a normalization or an odd activation, "harm" where the target depends on the mean of the input,
and "open" for the rest. It is fixed here and is not used by the forecast. Networks and data are named, not built, so
that listing the tasks does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import nn

    from gradcent_lab.forecasting.calibration.datasets import Split

Expected = Literal["open", "nothing", "harm"]
Optimizer = Literal["SGD", "AdamW", "Lion", "Muon"]

LARGER_STEPS = 100  # for the networks that take longer per step

# the learning rates that every arm is tuned over; `study.tune` adds rates where the best lies at an end
GRIDS: dict[str, tuple[float, ...]] = {
    "SGD": (0.01, 0.03, 0.1, 0.3, 1.0),
    "AdamW": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "Lion": (1e-4, 3e-4, 1e-3, 3e-3),
    "Muon": (3e-3, 1e-2, 3e-2, 1e-1),
}


@dataclass(frozen=True)
class Part:
    """A function of `networks` or `datasets` by name, and its arguments."""

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One network on one data set with one optimizer.

    family: tasks of one family go to the same half when thresholds are fixed and checked.
    narrow: tune from the three middle rates of the grid, to save time; `study.tune` adds rates as needed.
    """

    name: str
    family: str
    optimizer: Optimizer
    network: Part
    data: Part
    expected: Expected = "open"
    steps: int = 200
    batch: int = 64
    narrow: bool = False

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The rates that are tried first."""
        grid = GRIDS[self.optimizer]
        return grid[1:4] if self.narrow else grid

    def build_model(self) -> nn.Module:
        """Build the network; seed first."""
        from gradcent_lab.forecasting.calibration import networks

        model: nn.Module = getattr(networks, self.network.function)(**self.network.arguments)
        return model

    def load_data(self) -> Split:
        """Load the data."""
        from gradcent_lab.forecasting.calibration import datasets

        split: Split = getattr(datasets, self.data.function)(**self.data.arguments)
        return split


def _mlp(activation: str, norm: str = "none", inputs: int = 64, outputs: int = 10) -> Part:
    return Part("mlp", {"inputs": inputs, "outputs": outputs, "activation": activation, "norm": norm})


def _cnn(norm: str, activation: str = "relu", ws: bool = False, outputs: int = 10) -> Part:
    return Part("cnn", {"channels": 1, "outputs": outputs, "activation": activation, "norm": norm, "ws": ws})


def _vit(pre_norm: bool, outputs: int = 10) -> Part:
    return Part("Transformer", {"outputs": outputs, "pre_norm": pre_norm, "patches": True, "tokens": 16})


def _char(pre_norm: bool) -> Part:
    return Part("character_model", {"pre_norm": pre_norm})


def _rnn(kind: str, inputs: int, outputs: int) -> Part:
    return Part("Recurrent", {"kind": kind, "inputs": inputs, "outputs": outputs})


def _field(inputs: int, outputs: int, activation: str, fourier: bool = False) -> Part:
    arguments = {"inputs": inputs, "outputs": outputs, "activation": activation, "fourier": fourier}
    return Part("coordinate", arguments)


def _table(name: str) -> Part:
    return Part("table", {"name": name})


def _mlp_tasks() -> list[Task]:
    digits = Part("digits")
    return [
        Task("mlp relu, digits, SGD", "mlp-sgd", "SGD", _mlp("relu"), digits),
        Task("mlp gelu, digits, SGD", "mlp-sgd", "SGD", _mlp("gelu"), digits),
        Task("mlp silu, digits, SGD", "mlp-sgd", "SGD", _mlp("silu"), digits),
        Task("mlp elu, digits, SGD", "mlp-sgd", "SGD", _mlp("elu"), digits),
        Task("mlp sigmoid, digits, SGD", "mlp-sigmoid", "SGD", _mlp("sigmoid"), digits),
        Task("mlp sigmoid, digits, AdamW", "mlp-sigmoid", "AdamW", _mlp("sigmoid"), digits),
        Task("mlp tanh, digits, SGD", "mlp-tanh", "SGD", _mlp("tanh"), digits, "nothing"),
        Task("mlp tanh, digits, AdamW", "mlp-tanh", "AdamW", _mlp("tanh"), digits, "nothing"),
        Task("mlp relu, digits, AdamW", "mlp-adamw", "AdamW", _mlp("relu"), digits),
        Task("mlp gelu, digits, AdamW", "mlp-adamw", "AdamW", _mlp("gelu"), digits),
        Task("mlp relu, digits, Lion", "mlp-lion", "Lion", _mlp("relu"), digits),
        Task("mlp relu, digits, Muon", "mlp-muon", "Muon", _mlp("relu"), digits),
        Task("mlp BN relu, digits, SGD", "mlp-bn", "SGD", _mlp("relu", "bn"), digits),
        Task("mlp BN relu, digits, AdamW", "mlp-bn", "AdamW", _mlp("relu", "bn"), digits),
        Task("mlp LN relu, digits, SGD", "mlp-ln", "SGD", _mlp("relu", "ln"), digits),
        Task("mlp LN relu, digits, AdamW", "mlp-ln", "AdamW", _mlp("relu", "ln"), digits),
        Task("mlp relu LN, digits, SGD", "mlp-ln-after", "SGD", _mlp("relu", "ln_after"), digits, "nothing"),
        Task(
            "mlp relu LN, digits, AdamW", "mlp-ln-after", "AdamW", _mlp("relu", "ln_after"), digits, "nothing"
        ),
        Task(
            "mlp sigmoid LN, digits, SGD",
            "mlp-ln-after",
            "SGD",
            _mlp("sigmoid", "ln_after"),
            digits,
            "nothing",
        ),
        Task("mlp LN first, digits, SGD", "mlp-ln-first", "SGD", _mlp("relu", "ln_first"), digits, "nothing"),
        Task(
            "mlp LN first, digits, AdamW",
            "mlp-ln-first",
            "AdamW",
            _mlp("relu", "ln_first"),
            digits,
            "nothing",
        ),
    ]


def _image_tasks() -> list[Task]:
    digits, noisy = Part("digits"), Part("denoising")
    residual = Part("residual", {"channels": 1, "outputs": 10})
    residual_gn = Part("residual", {"channels": 1, "outputs": 10, "norm": "gn"})
    return [
        Task("cnn, digits, SGD", "cnn-none", "SGD", _cnn("none"), digits),
        Task("cnn BN, digits, SGD", "cnn-bn", "SGD", _cnn("bn"), digits),
        Task("cnn BN, digits, AdamW", "cnn-bn", "AdamW", _cnn("bn"), digits),
        Task("cnn GN, digits, SGD", "cnn-gn", "SGD", _cnn("gn"), digits),
        Task("cnn GN, digits, AdamW", "cnn-gn", "AdamW", _cnn("gn"), digits),
        Task("cnn GN, digits, Lion", "cnn-gn", "Lion", _cnn("gn"), digits),
        Task("cnn LN, digits, SGD", "cnn-ln", "SGD", _cnn("ln"), digits),
        Task("cnn BN tanh, digits, SGD", "cnn-tanh", "SGD", _cnn("bn", "tanh"), digits, "nothing"),
        Task("cnn GN tanh, digits, AdamW", "cnn-tanh", "AdamW", _cnn("gn", "tanh"), digits, "nothing"),
        Task("cnn BN WS, digits, SGD", "cnn-ws", "SGD", _cnn("bn", ws=True), digits),
        Task("cnn GN WS, digits, SGD", "cnn-ws", "SGD", _cnn("gn", ws=True), digits),
        Task("residual BN, digits, SGD", "residual", "SGD", residual, digits),
        Task("residual GN, digits, SGD", "residual", "SGD", residual_gn, digits),
        Task(
            "u-net BN, denoising, SGD",
            "u-net",
            "SGD",
            Part("UNet", {"norm": "bn"}),
            noisy,
            batch=32,
        ),
        Task(
            "u-net GN, denoising, AdamW",
            "u-net",
            "AdamW",
            Part("UNet", {"norm": "gn"}),
            noisy,
            batch=32,
        ),
    ]


def _token_tasks() -> list[Task]:
    digits = Part("digits")
    return [
        Task("ViT pre-LN, digits, AdamW", "vit-pre", "AdamW", _vit(True), digits, "nothing", batch=32),
        Task("ViT post-LN, digits, AdamW", "vit-post", "AdamW", _vit(False), digits, batch=32),
        Task("ViT pre-LN, digits, Muon", "vit-pre", "Muon", _vit(True), digits, "nothing", batch=32),
        Task("mixer, digits, AdamW", "mixer", "AdamW", Part("Mixer", {"outputs": 10}), digits),
        Task(
            "characters pre-LN, AdamW",
            "text",
            "AdamW",
            _char(True),
            Part("text"),
            "nothing",
            batch=32,
        ),
        Task("characters post-LN, AdamW", "text", "AdamW", _char(False), Part("text"), batch=32),
        Task("LSTM, rows of digits, AdamW", "rnn", "AdamW", _rnn("LSTM", 8, 10), Part("rows_of_digits")),
        Task("GRU, rows of digits, SGD", "rnn", "SGD", _rnn("GRU", 8, 10), Part("rows_of_digits")),
        Task("RNN, adding, AdamW", "rnn-adding", "AdamW", _rnn("RNN", 2, 1), Part("adding")),
    ]


def _table_and_field_tasks() -> list[Task]:
    friedman = _table("friedman")
    return [
        Task("mlp relu, wine, SGD", "tables", "SGD", _mlp("relu", inputs=13, outputs=3), _table("wine")),
        Task("mlp relu, Friedman, AdamW", "tables", "AdamW", _mlp("relu", inputs=10, outputs=1), friedman),
        Task(
            "mlp relu, diabetes, AdamW",
            "tables",
            "AdamW",
            _mlp("relu", inputs=10, outputs=1),
            _table("diabetes"),
        ),
        Task(
            "mlp relu, image from coordinates, AdamW",
            "coordinates",
            "AdamW",
            _field(2, 1, "relu"),
            Part("image_field"),
        ),
        Task(
            "mlp relu Fourier, image from coordinates, AdamW",
            "coordinates",
            "AdamW",
            _field(2, 1, "relu", True),
            Part("image_field"),
        ),
        Task(
            "mlp sine, image from coordinates, AdamW",
            "coordinates",
            "AdamW",
            _field(2, 1, "sine"),
            Part("image_field"),
        ),
        Task(
            "mlp tanh, image from coordinates, AdamW",
            "coordinates",
            "AdamW",
            _field(2, 1, "tanh"),
            Part("image_field"),
        ),
        Task(
            "graph, blocks, AdamW", "graph", "AdamW", _mlp("relu", inputs=24, outputs=6), Part("graph_nodes")
        ),
        Task("graph, blocks, SGD", "graph", "SGD", _mlp("relu", inputs=24, outputs=6), Part("graph_nodes")),
        Task("graph convolution, AdamW", "graph-conv", "AdamW", Part("GraphNetwork"), Part("small_graphs")),
        Task("graph convolution, SGD", "graph-conv", "SGD", Part("GraphNetwork"), Part("small_graphs")),
    ]


def _harm_tasks() -> list[Task]:
    light, ink = Part("brightness"), Part("ink")
    mean, cancer = _table("mean"), _table("breast_cancer")
    return [
        Task("cnn GN, brightness, SGD", "harm-cnn", "SGD", _cnn("gn", outputs=5), light, "harm"),
        Task("cnn BN, brightness, AdamW", "harm-cnn", "AdamW", _cnn("bn", outputs=5), light, "harm"),
        Task("mlp relu, brightness, SGD", "harm-mlp", "SGD", _mlp("relu", outputs=5), light, "harm"),
        Task("mlp tanh, brightness, AdamW", "harm-mlp", "AdamW", _mlp("tanh", outputs=5), light, "harm"),
        Task("mlp relu, ink, AdamW", "harm-mlp", "AdamW", _mlp("relu", outputs=1), ink, "harm"),
        Task(
            "ViT pre-LN, brightness, AdamW",
            "harm-vit",
            "AdamW",
            _vit(True, 5),
            light,
            "harm",
            steps=LARGER_STEPS,
            batch=32,
            narrow=True,
        ),
        Task(
            "mlp relu, breast cancer, SGD",
            "harm-tables",
            "SGD",
            _mlp("relu", inputs=30, outputs=2),
            cancer,
            "harm",
        ),
        Task(
            "mlp relu, breast cancer, AdamW",
            "harm-tables",
            "AdamW",
            _mlp("relu", inputs=30, outputs=2),
            cancer,
            "harm",
        ),
        Task(
            "mlp relu, mean of columns, AdamW",
            "harm-tables",
            "AdamW",
            _mlp("relu", inputs=16, outputs=1),
            mean,
            "harm",
        ),
        Task(
            "mlp tanh, mean of columns, SGD",
            "harm-tables",
            "SGD",
            _mlp("tanh", inputs=16, outputs=1),
            mean,
            "harm",
        ),
        Task(
            "mlp relu, flow around a cylinder, AdamW",
            "harm-flow",
            "AdamW",
            _field(7, 2, "relu"),
            Part("flow"),
            "harm",
        ),
        Task(
            "mlp tanh, flow around a cylinder, Lion",
            "harm-flow",
            "Lion",
            _field(7, 2, "tanh"),
            Part("flow"),
            "harm",
        ),
    ]


def all_tasks() -> tuple[Task, ...]:
    """Return every task, in a fixed order."""
    larger = tuple(
        replace(task, steps=LARGER_STEPS, narrow=True) for task in (*_image_tasks(), *_token_tasks())
    )
    return (*_mlp_tasks(), *larger, *_table_and_field_tasks(), *_harm_tasks())
