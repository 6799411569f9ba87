"""The theory recipe: the identity for every layout, and a check that a wrong layout is noticed."""

import pytest
import torch

from gradcent_lab.recipes.builders import identity, levels


@pytest.mark.parametrize("name", identity.CASES)
def test_centralizing_the_gradient_is_centering_the_inputs(name):
    torch.manual_seed(1)
    assert identity.largest_difference(name) < identity.ROUNDING


@pytest.mark.parametrize("name", ["Linear", "ConvTranspose2d, groups", "LSTM", "traced (experts, in, out)"])
def test_the_check_notices_a_wrong_layout(name):
    def over_everything(gradient, layout):
        return gradient - gradient.mean()

    torch.manual_seed(1)
    assert identity.largest_difference(name, over_everything) > 1e-3


def test_every_module_with_weight_vectors_has_a_case():
    classes = set()
    for build, _, _ in identity.CASES.values():
        module = build()
        classes |= {type(part).__name__ for part in module.modules()}
    for name in ("Linear", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "RNN", "LSTM", "GRU"):
        assert name in classes


def test_the_shares_are_those_of_the_formulas():
    torch.manual_seed(3)
    for check, difference, bound in levels.rows():
        assert difference <= bound, check


def test_a_bias_brings_back_what_layer_norm_removed():
    torch.manual_seed(0)
    inputs = torch.randn(64, levels.WIDTH, dtype=torch.float64)
    norm = torch.nn.LayerNorm(levels.WIDTH, dtype=torch.float64)
    assert levels.share_removed(norm, inputs) < 1e-12  # scale 1 and bias 0, as at initialization
    torch.nn.init.constant_(norm.bias, 1.0)
    assert levels.share_removed(norm, inputs) == pytest.approx(0.5, abs=0.05)
