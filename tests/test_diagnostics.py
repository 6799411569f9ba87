"""The monitor's figures against the same figures written out in float64."""

import math

import pytest
import torch
from torch import nn

import gradcent
from gradcent import calibration
from gradcent.diagnostics import initial_means


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(384, 5)
    )


def loss_of(model: nn.Module, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(8, 3, 8, 8, generator=generator)
    y = torch.randint(5, (8,), generator=generator)
    return nn.functional.cross_entropy(model(x), y)


def test_readings_are_the_equations_figures():
    model = small_model()
    loss_of(model).backward()
    monitor = gradcent.Monitor(model, every=1)
    readings = {reading.name: reading for reading in monitor.update()}

    assert set(readings) == {"0.weight", "2.weight", "4.weight"}
    gradient = model[2].weight.grad.double()
    vectors = gradient.view(2, 2, 3, 9).permute(0, 2, 1, 3).reshape(6, 18)  # (groups·out/groups, in/groups·k)
    rest = vectors - vectors.mean(1, keepdim=True)
    reading = readings["2.weight"]
    assert reading.norm_before == pytest.approx(float(vectors.norm()), rel=1e-5)
    assert reading.norm_after == pytest.approx(float(rest.norm()), rel=1e-5)
    assert reading.max_before == pytest.approx(float(vectors.abs().max()), rel=1e-5)
    assert reading.max_after == pytest.approx(float(rest.abs().max()), rel=1e-5)
    assert reading.removed == pytest.approx(float(1 - rest.square().sum() / vectors.square().sum()), rel=1e-4)


def test_drift_is_nothing_with_gc_and_something_without():
    drifts = {}
    for on in (True, False):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        if on:
            gradcent.attach(optimizer, model)
        monitor = gradcent.Monitor(model)
        start = model[4].weight.detach().double().sum(1)
        for step in range(20):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        drifts[on] = monitor.drift()
        truth = (model[4].weight.detach().double().sum(1) - start).abs().max()
        assert drifts[on]["4.weight"] == pytest.approx(float(truth), abs=2e-6)
    assert max(drifts[True].values()) < 1e-5
    assert min(drifts[False].values()) > 1e-3


@pytest.mark.parametrize("with_closure", [False, True])
@pytest.mark.parametrize("attached", ["torch", "hooks"])
def test_watch_reads_before_anything_is_centralized(with_closure, attached):
    class Plain(torch.optim.Optimizer):  # an optimizer gradcent does not know: centralized in place
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def step(self, closure=None):
            if closure is not None:
                with torch.enable_grad():
                    closure()
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.sub_(0.1 * parameter.grad)

    model = small_model()
    optimizer = (
        Plain(model.parameters()) if attached == "hooks" else torch.optim.SGD(model.parameters(), lr=0.1)
    )
    gradcent.attach(optimizer, model)
    seen = []
    monitor = gradcent.Monitor(model, every=2, callback=seen.append)
    handle = monitor.watch(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(4):
        if with_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    assert [batch[0].step for batch in seen] == [0, 2]
    assert min(reading.removed for reading in seen[0]) > 0.001
    handle.remove()
    closure()
    optimizer.step()
    assert monitor.steps == 4


def test_verdict_says_when_gc_does_next_to_nothing():
    layer = nn.Linear(64, 8, bias=False)
    layer.weight.grad = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    layer.weight.grad -= layer.weight.grad.mean(1, keepdim=True) * 0.99
    monitor = gradcent.Monitor(layer, every=1)
    assert "nothing read yet" in monitor.verdict()
    monitor.update()
    assert "next to nothing" in monitor.verdict()
    layer.weight.grad += 1.0
    monitor = gradcent.Monitor(layer, every=1)
    monitor.update()
    assert "enough to matter" in monitor.verdict()
    assert "next to nothing" not in str(monitor)


def test_update_without_gradients_and_bad_every_are_refused():
    model = small_model()
    with pytest.raises(ValueError, match="between backward"):
        gradcent.Monitor(model).update()
    with pytest.raises(ValueError, match="every must be a whole number, 1 or more, got 0"):
        gradcent.Monitor(model, every=0)


def test_initial_means_are_those_of_the_weight_vectors():
    model = small_model()
    means = initial_means(model)
    assert set(means) == {"0.weight", "2.weight"}  # conv layers only, as Fig. 3 draws them
    torch.testing.assert_close(means["0.weight"], model[0].weight.detach().mean((1, 2, 3)))
    assert means["2.weight"].shape == (6,)


def test_verdict_does_not_judge_gradients_that_are_not_numbers():
    model = nn.Linear(6, 3)
    monitor = gradcent.Monitor(model, every=1)
    model.weight.grad = torch.full((3, 6), float("nan"))
    monitor.update()
    assert math.isnan(monitor.readings[0].removed)
    assert "nan or inf: nothing can be said" in monitor.verdict()
    model.weight.grad = torch.ones(3, 6)
    monitor.update()
    assert monitor.removed == 1.0
    assert "removes 100 %" in monitor.verdict()
    assert "1 of 2 readings hold nan or inf" in monitor.verdict()
    zero = gradcent.Monitor(model, every=1)
    model.weight.grad = torch.zeros(3, 6)
    zero.update()
    assert "all 0" in zero.verdict()
    with pytest.raises(ValueError, match="whole number"):
        gradcent.Monitor(model, every=2.5)


def test_monitor_keeps_the_newest_readings_only():
    model = nn.Linear(4, 3)
    monitor = gradcent.Monitor(model, every=1, keep=5)
    for _ in range(20):
        model(torch.randn(2, 4)).sum().backward()
        monitor.update()
    assert [reading.step for reading in monitor.readings] == [15, 16, 17, 18, 19]
    with pytest.raises(ValueError, match="keep must be a whole number"):
        gradcent.Monitor(model, keep=0)


def test_monitor_is_bounded_and_its_figures_cover_the_whole_history():
    """Only the newest readings are kept; the share, the verdict and the table are those of all of them."""
    model = nn.Linear(4, 3)
    short, long = (gradcent.Monitor(model, every=1, keep=keep) for keep in (2, 1000))
    for step in range(50):
        model.zero_grad()
        model.weight.grad = torch.randn(3, 4) + step
        short.update()
        long.update()
    assert len(short.readings) == 2
    assert short.removed == long.removed
    assert str(short) == str(long)
    energy = sum(reading.energy for reading in long.readings)
    expected = sum(reading.removed * reading.energy for reading in long.readings) / energy
    assert short.removed == pytest.approx(expected, rel=1e-12)
    assert "means over 50 of 50 steps" in str(short)


def test_the_forecast_is_the_calibrations_sentence_for_the_mean_share_of_the_steps():
    """Steps count equally, however large their gradients are; steps without a finite gradient do not count."""
    layer = nn.Linear(4, 1, bias=False)
    monitor = gradcent.Monitor(layer, every=1)
    assert monitor.forecast() == ""
    half = torch.tensor([[1.0, 1.0, 0.0, 0.0]])  # its mean over the vector holds half of its energy
    centered = torch.tensor([[1.0, -1.0, 0.0, 0.0]])
    for gradient in (1000 * half, centered, torch.full((1, 4), math.nan), torch.zeros(1, 4)):
        layer.weight.grad = gradient
        monitor.update()
    assert monitor.forecast() == calibration.sentence(0.25)
    assert monitor.forecast().startswith("GC removes 25 % of the gradient here.")
    assert str(monitor).endswith(monitor.forecast())
