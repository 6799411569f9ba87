"""The forecast of a user's experiment: right figures, nothing left behind, bad input in one line."""

import copy
import json
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import gradcent
from gradcent_lab.cli import main
from gradcent_lab.errors import UserError
from gradcent_lab.experiment import Experiment
from gradcent_lab.forecasting.curvature import curvature_ratio
from gradcent_lab.forecasting.measure import forecast
from gradcent_lab.forecasting.target_mean import explained_by_input_mean


def make(model, *, targets="classes", inputs=None, **changes):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 12, generator=generator) if inputs is None else inputs
    y = torch.randint(3, (96,), generator=generator) if targets == "classes" else targets
    loss = nn.functional.cross_entropy if targets == "classes" else nn.functional.mse_loss
    fields = {
        "name": "forecast-test",
        "model": model,
        "train_data": TensorDataset(x, y),
        "eval_data": TensorDataset(x, y),
        "loss": loss,
        "metric": lambda output, target: output.argmax(1) == target,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.05),
        "epochs": 2,
        "batch_size": 32,
    }
    return Experiment(**{**fields, **changes})


def relu_net():
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def test_the_share_removed_is_that_of_the_gradients_of_training_without_gc():
    """The truth: the same steps by hand, with the equation in float64."""
    result = forecast(make(relu_net), steps=5, seeds=1)
    from gradcent_lab.data.batches import Feed
    from gradcent_lab.data.random_streams import seed_everything

    experiment = make(relu_net)
    seed_everything(0, "weights")
    model = experiment.model()
    optimizer = experiment.optimizer(model.parameters())
    feed = Feed(experiment.train_data, 32, seed=0, train=True, drop_last=True)
    batches = [batch for epoch in range(2) for batch in feed.epoch(epoch)][:5]
    shares = []
    for batch in batches:
        optimizer.zero_grad()
        experiment.loss(model(batch.inputs), batch.targets).backward()
        gradients = [module.weight.grad.double() for module in model if isinstance(module, nn.Linear)]
        total = sum(float(g.square().sum()) for g in gradients)
        shares.append(sum(float(g.mean(1).square().sum()) * g.shape[1] for g in gradients) / total)
        optimizer.step()
    assert result.removed == pytest.approx(sum(shares) / 5, rel=1e-4)


def test_nothing_is_removed_after_a_layer_norm_and_one_over_pi_of_the_input_after_relu():
    def normalized():
        return nn.Sequential(nn.LayerNorm(12, elementwise_affine=False), nn.Linear(12, 3))

    result = forecast(make(normalized), steps=3, seeds=1)
    assert result.removed < 1e-10
    # E[relu(x)]² / E[relu(x)²] = (1/2π) / (1/2) = 1/π for a unit normal x
    wide = forecast(
        make(lambda: nn.Sequential(nn.ReLU(), nn.Linear(4096, 3)), inputs=torch.randn(96, 4096)), steps=1
    )
    (layer,) = wide.layers
    assert layer.level == pytest.approx(1 / torch.pi, abs=0.02)


def test_the_function_is_an_attribute_of_the_lab():
    import gradcent_lab

    assert gradcent_lab.forecast is forecast
    with pytest.raises(AttributeError, match="no attribute 'forcast'"):
        _ = gradcent_lab.forcast


def test_a_forecast_takes_at_most_200_passes():
    calls = []

    def counted(output, target):
        calls.append(1)
        return nn.functional.cross_entropy(output, target)

    result = forecast(make(lambda: nn.Linear(12, 3), loss=counted), steps=500, seeds=3)
    assert len(calls) == 3 * result.steps == 198
    assert forecast(make(lambda: nn.Linear(12, 3)), steps=500, seeds=4, curvature=True).steps == 40


def test_roles_are_shown():
    result = forecast(make(relu_net), steps=2, seeds=1)
    assert [layer.role for layer in result.layers] == ["input", "hidden", "hidden"]


def test_the_users_model_and_the_generators_are_as_before():
    kept = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(kept.parameters())
    kept(torch.randn(4, 12)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    before, state = copy.deepcopy(kept.state_dict()), torch.get_rng_state()
    optimizer_before = copy.deepcopy(optimizer.state_dict())
    others = random.getstate(), numpy.random.get_state()
    forecast(make(lambda: kept), steps=4, seeds=2, curvature=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == others[0]
    assert all(numpy.array_equal(a, b) for a, b in zip(numpy.random.get_state(), others[1], strict=True))
    assert str(optimizer.state_dict()) == str(optimizer_before)
    assert kept.training
    for name, value in kept.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(param.grad is None for param in kept.parameters())


@pytest.mark.parametrize(
    ("targets", "expected"),
    [("mean", 1.0), ("noise", 0.0), ("half", 0.5)],
)
def test_the_share_of_the_target_that_the_input_mean_explains(targets, expected):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(4000, 10, generator=generator)
    mean = inputs.mean(1) / inputs.mean(1).std()
    noise = torch.randn(4000, generator=generator)
    values = {"mean": mean, "noise": noise, "half": mean + noise}[targets]
    assert explained_by_input_mean(inputs, values) == pytest.approx(expected, abs=0.03)
    assert explained_by_input_mean(inputs, values.unsqueeze(1)) == pytest.approx(expected, abs=0.03)


def test_eta_squared_of_two_classes_by_hand():
    inputs = torch.tensor([[0.0], [2.0], [4.0], [6.0]])
    labels = torch.tensor([0, 0, 1, 1])
    # class means 1 and 5 around 3: between 4·(2²) = 16 of a total of 9 + 1 + 1 + 9 = 20
    assert explained_by_input_mean(inputs, labels) == pytest.approx(16 / 20)
    assert explained_by_input_mean(torch.randint(5, (4, 3)), labels) is None


def test_the_curvature_ratio_is_that_of_the_hessian():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 1, bias=False)).double()
    x, y = 1 + torch.rand(20, 4, dtype=torch.float64), torch.randn(20, 1, dtype=torch.float64)
    plan = gradcent.explain(model)

    def loss():
        return (model(x) - y).square().mean()

    def flat_loss(flat):
        first, second = flat[:12].view(3, 4), flat[12:].view(1, 3)
        return ((x @ first.T).tanh() @ second.T - y).square().mean()

    flat = torch.cat([param.detach().flatten() for param in model.parameters()])
    hessian = torch.autograd.functional.hessian(flat_loss, flat)
    blocks = [torch.eye(4, dtype=torch.float64) - 0.25] * 3 + [torch.eye(3, dtype=torch.float64) - 1 / 3]
    projection = torch.block_diag(*blocks)
    whole = torch.linalg.eigvalsh(hessian).abs().max()
    inside = torch.linalg.eigvalsh(projection @ hessian @ projection).abs().max()
    assert curvature_ratio(loss, plan, iterations=300) == pytest.approx(float(whole / inside), rel=1e-3)


class OnlyOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient


class NoDoubleBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x):
        return OnlyOnce.apply(self.layer(x))


def test_a_model_without_double_backward_gets_no_curvature_and_a_reason():
    result = forecast(make(NoDoubleBackward), steps=2, seeds=1, curvature=True)
    assert result.curvature is None
    assert "differentiated twice" in result.curvature_note
    assert result.removed > 0


class Samples(IterableDataset):
    def __iter__(self):
        yield torch.zeros(12), 0


def infinite_slope(output, target):
    return (output * 0).sum().sqrt()  # finite, but its slope at 0 is not


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (make(lambda: nn.Linear(12, 3), loss=lambda output, target: output), "one number"),
        (make(lambda: nn.Linear(12, 3), loss=lambda output, target: output.sum() * float("nan")), "became nan"),
        (make(lambda: nn.Sequential(nn.BatchNorm1d(12))), "nothing would be centralized"),
        (make(lambda: nn.Linear(12, 3).requires_grad_(False)), "frozen"),
        (make(lambda: nn.Linear(12, 3), loss=lambda output, target: 1.0), "one number, .* not a float"),
        (make(lambda: nn.Linear(12, 3), loss=lambda output, target: output.sum().detach()), "does not depend"),
        (make(lambda: nn.Linear(12, 3), loss=lambda output, target: output.sum() / 0), "became -?inf"),
        (make(lambda: nn.Linear(12, 3), loss=infinite_slope), "the gradient of weight holds nan or inf in step 1"),
        (make(lambda: nn.Linear(11, 3)), "failed .*shapes cannot be multiplied"),
        (make(lambda: undefined_name), "Experiment.model fails: NameError: .*undefined_name"),  # noqa: F821
        (make(lambda: nn.Linear(12, 3), loss=lambda output, target: target.foo), "Experiment.loss fails: Attrib"),
        (make(lambda: nn.Linear(12, 3), optimizer=lambda params: torch.optim.SGD(params, lr=-1)), "optimizer fails"),
        (make(lambda: nn.Linear(12, 3), train_data=iter([])), "can be read only once"),
        (make(lambda: nn.Linear(12, 3), train_data=Samples()), "Samples yields single samples: give a DataLoader"),
        (make(lambda: nn.Linear(12, 3), train_data=[]), "empty|no batches"),
    ],
    ids=[
        *("loss not scalar", "not finite", "no layer", "all frozen", "loss not a tensor", "loss detached"),
        *("infinite", "gradient not finite", "model fails", "no model", "loss fails", "optimizer fails"),
        *("iterator", "iterable of samples", "no data"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(experiment, message):
    with pytest.raises(UserError, match=message) as caught:
        forecast(experiment, steps=2, seeds=1)
    assert "\n" not in str(caught.value)


class Endless:
    """An iterable of ready batches that has neither a length nor an end."""

    def __iter__(self):
        while True:
            yield torch.randn(16, 12), torch.randint(3, (16,))


def test_data_may_be_an_iterable_of_batches_without_end():
    result = forecast(make(relu_net, train_data=Endless()), steps=4, seeds=2)
    assert result.steps == 4
    loader = DataLoader(make(relu_net).train_data, batch_size=32)
    assert forecast(make(relu_net, train_data=loader), steps=4, seeds=1).removed > 0


def test_what_the_calibration_has_not_seen_is_named():
    def volume():
        return nn.Sequential(
            nn.Unflatten(1, (1, 2, 2, 3)), nn.Conv3d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3), Big()
        )

    class Big(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(3_000_000))

        def forward(self, x):
            return x + 0 * self.unused[0]

    known = forecast(make(relu_net), steps=1, seeds=1)
    assert known.unseen == ()
    assert "no task with" not in known.sentence()
    optimizer = {"optimizer": lambda params: torch.optim.RMSprop(params, lr=1e-3)}
    result = forecast(make(volume, **optimizer), steps=1, seeds=1)
    assert result.unseen[:2] == ("the optimizer RMSprop", "Conv3d layers")
    assert "this model 3,000,063" in result.sentence()
    assert (
        "The calibration has no task with the optimizer RMSprop, Conv3d layers or so many"
        in result.sentence()
    )


def test_attention_has_a_curvature():
    """The fused attention kernels cannot be differentiated twice; the plain one can."""

    def model():
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Unflatten(1, (3, 4)), layer, nn.Flatten(), nn.Linear(12, 3))

    result = forecast(make(model), steps=1, seeds=1, curvature=True)
    assert result.curvature_note == ""
    assert result.curvature >= 1


def test_a_frozen_input_layer_is_left_out():
    def model():
        net = relu_net()
        net[0].requires_grad_(False)
        return net

    result = forecast(make(model), steps=2, seeds=1)
    assert [layer.name for layer in result.layers] == ["2.weight", "4.weight"]


def test_the_command_prints_and_writes(tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.data import TensorDataset\n"
        "from gradcent_lab.experiment import Experiment\n"
        "x, y = torch.randn(64, 6), torch.randint(2, (64,))\n"
        "def experiment():\n"
        "    net = lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))\n"
        "    return Experiment(name='mine', model=net,\n"
        "        train_data=TensorDataset(x, y), eval_data=TensorDataset(x, y), loss=nn.functional.cross_entropy,\n"
        "        metric=lambda output, target: output.argmax(1) == target,\n"
        "        optimizer=lambda params: torch.optim.SGD(params, lr=0.1), epochs=1, batch_size=16)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["forecast", "mine.py:experiment", "--steps", "4", "--seeds", "2", "--curvature"]) == 0
    output = capsys.readouterr().out
    assert "GC removes" in output
    assert "λmax(H)" in output
    data = json.loads((tmp_path / "gradcent-forecast" / "forecast.json").read_text())
    assert data["seeds"] == 2
    assert {layer["role"] for layer in data["layers"]} == {"input", "hidden"}
    page = (tmp_path / "gradcent-forecast" / "forecast.html").read_text()
    assert "Layer by layer" in page
    assert main(["forecast", "mine.py:experiment", "--steps", "0"]) == 2
