"""Small networks of the calibration, one function per family: activation and normalization are arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradcent_lab.forecasting.calibration.datasets import ALPHABET, GRAPH_NODES, TEXT_LENGTH

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


class Standardized(nn.Conv2d):
    """Convolution with weight standardization (Qiao et al. 2019): each filter has mean 0 and deviation 1."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve with the standardized weight."""
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        output: Tensor = self._conv_forward(inputs, weight, self.bias)
        return output


def norm_2d(name: str, channels: int) -> nn.Module:
    """Return a normalization of images: none, bn, gn or ln (over all channels of a pixel)."""
    if name == "bn":
        return nn.BatchNorm2d(channels)
    if name == "gn":
        return nn.GroupNorm(4, channels)
    if name == "ln":
        return nn.GroupNorm(1, channels)
    return nn.Identity()


def mlp(
    inputs: int,
    outputs: int,
    *,
    activation: str = "relu",
    norm: str = "none",
    width: int = 64,
    depth: int = 3,
) -> nn.Module:
    """Linear layers; norm "ln" and "bn" come before the activation, "ln_after" behind it.

    "ln_first" puts a LayerNorm without affine parameters before every Linear, so GC changes nothing at all.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    size = inputs
    for _ in range(depth):
        if norm == "ln_first":
            layers.append(nn.LayerNorm(size, elementwise_affine=False))
        layers.append(nn.Linear(size, width))
        if norm == "bn":
            layers.append(nn.BatchNorm1d(width))
        if norm == "ln":
            layers.append(nn.LayerNorm(width))
        layers.append(ACTIVATIONS[activation]())
        if norm == "ln_after":
            layers.append(nn.LayerNorm(width))
        size = width
    if norm == "ln_first":
        layers.append(nn.LayerNorm(size, elementwise_affine=False))
    return nn.Sequential(*layers, nn.Linear(size, outputs))


def cnn(
    channels: int,
    outputs: int,
    *,
    activation: str = "relu",
    norm: str = "bn",
    width: int = 12,
    ws: bool = False,
) -> nn.Module:
    """Three convolutions, global average, one linear layer."""
    conv = Standardized if ws else nn.Conv2d
    layers: list[nn.Module] = []
    for index in range(3):
        out = width * (2 if index else 1)
        layers += [conv(channels, out, 3, padding=1, stride=2 if index else 1), norm_2d(norm, out)]
        layers.append(ACTIVATIONS[activation]())
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))


class _Residual(nn.Module):
    def __init__(self, channels: int, norm: str, activation: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            norm_2d(norm, channels),
            ACTIVATIONS[activation](),
            nn.Conv2d(channels, channels, 3, padding=1),
            norm_2d(norm, channels),
        )
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.activation(x + self.body(x))
        return output


def residual(channels: int, outputs: int, *, norm: str = "bn", activation: str = "relu") -> nn.Module:
    """A stem and two residual blocks."""
    width = 16 if norm == "gn" else 14  # GroupNorm has 4 groups
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        norm_2d(norm, width),
        ACTIVATIONS[activation](),
        _Residual(width, norm, activation),
        nn.MaxPool2d(2),
        _Residual(width, norm, activation),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, outputs),
    )


class UNet(nn.Module):
    """Two levels, one skip connection."""

    def __init__(self, norm: str = "bn", activation: str = "relu", width: int = 10) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1), norm_2d(norm, outputs), ACTIVATIONS[activation]()
            )

        wide = 2 * width if norm != "gn" else 24
        width = width if norm != "gn" else 12
        self.down, self.bottom, self.up = block(1, width), block(width, wide), block(2 * width, width)
        self.pool, self.grow = nn.MaxPool2d(2), nn.ConvTranspose2d(wide, width, 2, stride=2)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the input's size."""
        top = self.down(x)
        output: Tensor = self.out(self.up(torch.cat([top, self.grow(self.bottom(self.pool(top)))], 1)))
        return output


class Transformer(nn.Module):
    """A small encoder over image patches, or over characters (causal), with norms before or behind."""

    def __init__(
        self,
        outputs: int,
        *,
        pre_norm: bool,
        patches: bool,
        tokens: int,
        vocabulary: int = 0,
        width: int = 32,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.patches = patches
        self.embed: nn.Module = nn.Linear(4, width) if patches else nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(tokens, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=pre_norm, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width) if pre_norm else nn.Identity()
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return one output per image, or one per character."""
        if self.patches:
            cut = x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), -1, 4)
            output: Tensor = self.out(self.norm(self.layers(self.embed(cut) + self.places)).mean(1))
            return output
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        output = self.out(self.norm(self.layers(self.embed(x) + self.places, mask=mask, is_causal=True)))
        return output


def character_model(*, pre_norm: bool) -> nn.Module:
    """Return a transformer over the characters of the text data."""
    size = len(ALPHABET)
    return Transformer(size, pre_norm=pre_norm, patches=False, tokens=TEXT_LENGTH, vocabulary=size)


class Mixer(nn.Module):
    """MLP-mixer over 2 × 2 patches of an 8 × 8 image."""

    def __init__(self, outputs: int, *, norm: bool = True, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) if norm else nn.Identity() for _ in range(4)])
        self.tokens = nn.ModuleList(
            [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2)]
        )
        self.channels = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(2)]
        )
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Mix over patches, then over channels, twice."""
        x = self.embed(x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), 16, 4))
        for index in range(2):
            x = x + self.tokens[index](self.norms[2 * index](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.channels[index](self.norms[2 * index + 1](x))
        output: Tensor = self.out(x.mean(1))
        return output


class Recurrent(nn.Module):
    """LSTM, GRU or tanh RNN; the last state decides."""

    def __init__(self, kind: str, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(inputs, width, batch_first=True)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return one output per sequence."""
        states, _ = self.cell(x)
        output: Tensor = self.out(states[:, -1])
        return output


class GraphNetwork(nn.Module):
    """Three graph convolutions (Kipf and Welling 2017), mean over the nodes; a sample is (links | features)."""

    def __init__(self, features: int = 6, outputs: int = 3, width: int = 32) -> None:
        super().__init__()
        sizes = (features, width, width, width)
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return one output per graph."""
        links, nodes = x[..., :GRAPH_NODES], x[..., GRAPH_NODES:]
        for layer in self.layers:
            nodes = torch.relu(links @ layer(nodes))
        output: Tensor = self.out(nodes.mean(1))
        return output


class Sine(nn.Module):
    """The activation of coordinate networks (Sitzmann et al. 2020)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return sin(10 x)."""
        return torch.sin(10 * x)


class Fourier(nn.Module):
    """Fixed random Fourier features of coordinates."""

    directions: Tensor

    def __init__(self, inputs: int, count: int = 16) -> None:
        super().__init__()
        self.register_buffer("directions", 3 * torch.randn(inputs, count))

    def forward(self, x: Tensor) -> Tensor:
        """Return cosines and sines."""
        angles = x @ self.directions
        return torch.cat([angles.cos(), angles.sin()], 1)


def coordinate(inputs: int, outputs: int, *, activation: str = "relu", fourier: bool = False) -> nn.Module:
    """A network from coordinates to a field."""
    act = Sine if activation == "sine" else ACTIVATIONS[activation]
    first: list[nn.Module] = [Fourier(inputs)] if fourier else []
    size = 32 if fourier else inputs
    return nn.Sequential(
        *first,
        nn.Linear(size, 64),
        act(),
        nn.Linear(64, 64),
        act(),
        nn.Linear(64, 64),
        act(),
        nn.Linear(64, outputs),
    )
