"""Does GC help a small transformer that learns English, character by character, from Python's own manual?

gradcent compare examples/compare_language_model.py:experiment --seeds 5
"""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradcent_lab.experiment import Experiment

LENGTH = 64  # characters of context
ALPHABET = "\n " + "".join(map(chr, range(33, 127)))


def text() -> torch.Tensor:
    """The topics of `help()`, about 700,000 characters, as numbers; what is not ASCII is left out."""
    known = {character: number for number, character in enumerate(ALPHABET)}
    everything = "\n".join(topics[name] for name in sorted(topics))
    return torch.tensor([known[character] for character in everything if character in known])


def pieces(numbers: torch.Tensor, count: int) -> TensorDataset:
    """Cut the text into pieces; the target of every character is the next one."""
    rows = numbers[: count * (LENGTH + 1)].view(count, LENGTH + 1)
    return TensorDataset(rows[:, :-1], rows[:, 1:])


class Transformer(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(numbers.shape[1], device=numbers.device)
        x = self.characters(numbers) + self.places.weight[: numbers.shape[1]]
        return self.out(self.norm(self.layers(x, mask=mask, is_causal=True)))


def bits(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Bits per character of every piece."""
    loss = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
    return loss.view(target.shape).mean(1) / torch.log(torch.tensor(2.0))


def experiment() -> Experiment:
    numbers = text()
    train, test = 2000, 400
    return Experiment(
        name="python-manual",
        model=Transformer,
        train_data=pieces(numbers, train),
        eval_data=pieces(numbers[-test * (LENGTH + 1) :], test),
        loss=lambda output, target: nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()),
        metric=bits,
        metric_name="bits per character",
        higher_is_better=False,
        optimizer=lambda params: torch.optim.AdamW(params, lr=2e-3, weight_decay=0.1),
        epochs=6,
        batch_size=25,
        eval_batch_size=100,
    )
