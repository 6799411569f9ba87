"""The theory recipe: the identity for every layout, and a check that a wrong layout is noticed."""

import pytest
import torch

import gradcent
from gradcent_lab import recipes
from gradcent_lab.recipes.builders import conv_theorems, identity, levels, theorems


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


def test_the_recipe_uses_autograds_hessian_and_a_network_over_10000_steps():
    for scale in ("paper", "small"):
        assert recipes.get("theory").study(scale).cells[0].settings["network_steps"] == 10_000
    torch.manual_seed(0)
    rows = {row["check"]: row for row in theorems.network_rows(200)}
    assert all(row["holds"] for row in rows.values()), rows
    assert "4.1 convolution, 200 steps: the response to a shift stays" in rows
    assert sum("autograd's Hessian" in check for check in rows) == 6
    assert not any("‖PH‖" in row["check"] for row in theorems.theorem_2(3, random_hessians=False))


@pytest.mark.parametrize("layer", ["0.weight", "4.weight"])
def test_the_hessian_is_that_of_finite_differences(layer):
    """Along one direction, from gradients of backward: neither jacrev nor centralize takes part in the truth."""
    torch.manual_seed(2)
    projection, hessian, seen = conv_theorems.hessians(layer)
    torch.manual_seed(2)
    model, images, labels = conv_theorems.make_problem()
    weight = model.get_parameter(layer)
    direction = torch.randn(weight.shape, dtype=torch.float64)
    gradients = []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * 1e-5 * direction
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        gradients.append(weight.grad.clone())
        with torch.no_grad():
            weight -= sign * 1e-5 * direction
    change = (gradients[0] - gradients[1]) / 2e-5
    assert torch.allclose(hessian @ direction.flatten(), change.flatten(), atol=1e-6)
    centred = change.flatten(1) - change.flatten(1).mean(1, keepdim=True)
    assert torch.allclose(seen @ direction.flatten(), centred.flatten(), atol=1e-6)
    assert torch.allclose(projection @ change.flatten(), centred.flatten(), atol=1e-10)


def test_an_operator_that_is_no_projection_fails_every_check_of_the_hessian(monkeypatch):
    centralize = gradcent.centralize
    monkeypatch.setattr(gradcent, "centralize", lambda gradient, layout: 10 * centralize(gradient, layout))
    torch.manual_seed(0)
    failed = [row["check"] for row in theorems.network_rows(20) if not row["holds"]]
    assert len(failed) == 6, failed


def test_runs_of_earlier_versions_repeat():
    """Their settings name no network: they checked random symmetric matrices."""
    settings = {"name": "theory", "steps": 2, "gradients": 2}
    _, rows = theorems.measure(settings, 0, None)
    assert [row["check"] for row in rows if "‖PH‖" in row["check"]] == [
        "4.2b ‖PH‖ ≤ ‖H‖ in the spectral norm",
        "4.2b ‖PH‖ ≤ ‖H‖ in the Frobenius norm",
    ]
