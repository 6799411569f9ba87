"""The character transformer: next characters of Python's manual, no look ahead, runs bound to their text."""

from __future__ import annotations

import math

import pytest
import torch

from gradcent_lab import recipes
from gradcent_lab.data.python_manual import unique_paragraphs
from gradcent_lab.errors import UserError
from gradcent_lab.forecasting.calibration.datasets import ALPHABET
from gradcent_lab.recipes.builders import characters


def smoke_settings():
    return recipes.get("characters").study("smoke").cells[0].settings


def characters_of(numbers):
    return "".join(ALPHABET[number] for number in numbers)


def test_targets_are_the_next_characters_of_the_manual():
    experiment = characters.build(smoke_settings(), None)
    kept = "".join(character for character in unique_paragraphs() if character in set(ALPHABET))
    for inputs, targets in (experiment.train_data[5], experiment.eval_data[5]):
        assert characters_of((*inputs.tolist(), int(targets[-1]))) in kept
        assert torch.equal(inputs[1:], targets[:-1])


def test_few_test_windows_repeat_training_text():
    study = recipes.get("characters").study("mini")
    experiment = characters.build(study.cells[0].settings, None)
    train, test = (
        [characters_of(inputs.tolist()) for inputs, _ in data]
        for data in (experiment.train_data, experiment.eval_data)
    )
    assert (len(train), len(test)) == (5_120, 600)
    everything = "\0".join(train)
    assert sum(window[16:48] in everything for window in test) < 600 / 12  # with repeated paragraphs a sixth


def test_a_prediction_does_not_depend_on_later_characters():
    model = characters.build(smoke_settings(), None).model().eval()
    inputs = torch.randint(len(ALPHABET), (2, 16), generator=torch.Generator().manual_seed(0))
    changed = inputs.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % len(ALPHABET)
    before, after = model(inputs), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9], after[:, 9])


def test_loss_and_accuracy_are_means_over_characters():
    target = torch.tensor([[0, 1], [2, 2]])
    output = torch.full((2, 2, 4), 0.0)
    assert float(characters.next_character_loss(output, target)) == pytest.approx(math.log(4))
    output.scatter_(2, torch.tensor([[[0], [1]], [[2], [3]]]), 5.0)
    assert characters.next_character_accuracy(output, target).tolist() == [100.0, 50.0]


def test_the_text_of_another_python_is_refused():
    settings = smoke_settings()
    other = {**settings, "data": {**settings["data"], "text": "0123456789abcdef"}}
    with pytest.raises(UserError, match=r"another release of Python.*0123456789abcdef"):
        characters.build(other, None)
