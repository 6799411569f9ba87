"""One small model of every kind of module, for plans and for properties over random models."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Make = Callable[[], nn.Module]

# Everything torch brings along that has weight vectors; `equations.vectors` knows them one by one.
KINDS: dict[str, Make] = {
    "linear": lambda: nn.Linear(5, 4),
    "linear without bias": lambda: nn.Linear(5, 4, bias=False),
    "bilinear": lambda: nn.Bilinear(3, 4, 5),
    "conv1d": lambda: nn.Conv1d(4, 6, 3),
    "conv2d": lambda: nn.Conv2d(4, 6, (2, 3)),
    "conv3d": lambda: nn.Conv3d(2, 4, 2),
    "conv2d 1x1": lambda: nn.Conv2d(4, 6, 1),
    "conv2d grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "conv2d depthwise": lambda: nn.Conv2d(4, 8, 3, groups=4),
    "conv1d depthwise": lambda: nn.Conv1d(4, 4, 3, groups=4),
    "transposed conv1d": lambda: nn.ConvTranspose1d(4, 6, 3),
    "transposed conv2d": lambda: nn.ConvTranspose2d(4, 6, (2, 3)),
    "transposed conv3d": lambda: nn.ConvTranspose3d(2, 4, 2),
    "transposed conv2d grouped": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
    "transposed conv2d depthwise": lambda: nn.ConvTranspose2d(4, 4, 3, groups=4),
    "transposed conv2d 1x1": lambda: nn.ConvTranspose2d(4, 6, 1, groups=2),
    "attention fused": lambda: nn.MultiheadAttention(6, 2),
    "attention separate": lambda: nn.MultiheadAttention(6, 2, kdim=4, vdim=5),
    "attention bias_kv": lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True),
    "rnn": lambda: nn.RNN(3, 4, num_layers=2),
    "lstm": lambda: nn.LSTM(3, 4, bidirectional=True),
    "lstm projected": lambda: nn.LSTM(3, 4, proj_size=2),
    "gru": lambda: nn.GRU(3, 4),
    "rnn cell": lambda: nn.RNNCell(3, 4),
    "lstm cell": lambda: nn.LSTMCell(3, 4),
    "gru cell": lambda: nn.GRUCell(3, 4),
    "transformer layer": lambda: nn.TransformerEncoderLayer(6, 2, 8),
    "transformer decoder": lambda: nn.TransformerDecoderLayer(6, 2, 8),
}

# Modules whose every parameter is left alone.
LEFT_ALONE: dict[str, Make] = {
    "batch norm": lambda: nn.BatchNorm2d(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "layer norm": lambda: nn.LayerNorm(4),
    "layer norm of two dims": lambda: nn.LayerNorm([4, 5]),
    "rms norm of two dims": lambda: nn.RMSNorm([4, 5]),
    "instance norm": lambda: nn.InstanceNorm2d(4, affine=True),
    "embedding": lambda: nn.Embedding(7, 4),
    "embedding bag": lambda: nn.EmbeddingBag(7, 4),
    "prelu": lambda: nn.PReLU(4),
    "linear of one input": lambda: nn.Linear(1, 5),
    "conv2d depthwise 1x1": lambda: nn.Conv2d(4, 4, 1, groups=4),
    "transposed conv2d depthwise 1x1": lambda: nn.ConvTranspose2d(4, 4, 1, groups=4),
    "rnn of one input and one unit": lambda: nn.RNN(1, 1),
}
