"""Keras 3 on the torch backend: fit() against GC written out by hand, and the layouts of its layers."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
import torch
from engine_examples import drift_in_example

if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed here", allow_module_level=True)
os.environ["KERAS_BACKEND"] = "torch"
pytestmark = pytest.mark.filterwarnings("ignore")

import keras  # noqa: E402

from gradcent.integrations.keras import attach, detach, explain  # noqa: E402

L = keras.layers
X = np.random.RandomState(0).randn(48, 6, 6, 2).astype(np.float32)
Y = np.random.RandomState(1).randn(48, 3).astype(np.float32)


def model(clip: float | None = None, decay: float | None = None, adam: bool = False, **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    net = keras.Sequential(
        [
            L.Input((6, 6, 2)),
            L.Conv2D(4, 3, activation="tanh", name="conv"),
            L.Conv2DTranspose(3, 2, activation="tanh", name="up"),
            L.Flatten(),
            L.Dense(3, name="head", kernel_regularizer=keras.regularizers.L2(0.01)),
        ]
    )
    kind = keras.optimizers.AdamW if adam else keras.optimizers.SGD
    momentum = {} if adam else {"momentum": 0.9}
    optimizer = kind(0.01, global_clipnorm=clip, weight_decay=decay, **momentum, **options)
    net.compile(optimizer=optimizer, loss="mse")
    return net


def weights(net: Any) -> dict[str, torch.Tensor]:
    return {each.path.split("/", 1)[1]: each.value.detach().clone() for each in net.trainable_variables}


AVERAGED = {"conv/kernel": (0, 1, 2), "up/kernel": (0, 1, 3), "head/kernel": (0,)}


def by_hand(net: Any, clip: float, decay: float, epochs: int) -> dict[str, torch.Tensor]:
    """SGD with momentum as Keras has it, batch after batch: clip, decay, GC, momentum step."""
    values = {each.path.split("/", 1)[1]: each.value for each in net.trainable_variables}
    momentum = {name: torch.zeros_like(each) for name, each in values.items()}
    for _ in range(epochs):
        for start in range(0, 48, 8):
            x, y = torch.tensor(X[start : start + 8]), torch.tensor(Y[start : start + 8])
            loss = ((net(x) - y) ** 2).mean() + 0.01 * values["head/kernel"].pow(2).sum()
            gradients = dict(zip(values, torch.autograd.grad(loss, list(values.values())), strict=True))
            norm = torch.sqrt(sum((each**2).sum() for each in gradients.values()))  # type: ignore[arg-type]
            factor = clip / max(norm.item(), clip)
            with torch.no_grad():
                for name, value in values.items():
                    gradient = gradients[name] * factor
                    if name in AVERAGED:
                        gradient -= gradient.mean(AVERAGED[name], keepdim=True)
                    value *= 1 - decay * 0.01
                    momentum[name] = 0.9 * momentum[name] - 0.01 * gradient
                    value += momentum[name]
    return {name: each.detach().clone() for name, each in values.items()}


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_fit_is_what_is_written_by_hand(kernel: str, verified: Any) -> None:
    net = model(clip=0.5, decay=0.1)
    start = weights(net)
    attach(net.optimizer, net, kernel=kernel)
    net.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    ours, truth = weights(net), by_hand(model(), 0.5, 0.1, 3)
    assert max((ours[name] - start[name]).abs().max().item() for name in ours) > 0.01
    found = max((ours[name] - truth[name]).abs().max().item() for name in ours)
    what = (
        f"torch backend, fit(), SGD, clipped, decoupled decay and an L2 regularizer, kernel={kernel}, float32"
    )
    verified("Keras", "keras", what, found, 1e-5)


@pytest.mark.parametrize("accumulate", [None, 2])
def test_at_the_update_the_sums_stay(accumulate: int | None, verified: Any) -> None:
    net = model(decay=0.1, adam=True, gradient_accumulation_steps=accumulate)
    start = weights(net)
    attach(net.optimizer, net, at="update")
    net.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    end = weights(net)
    assert (end["conv/kernel"] - start["conv/kernel"]).abs().max() > 0.01
    found = max((end[name] - start[name]).mean(dims).abs().max().item() for name, dims in AVERAGED.items())
    what = (
        "torch backend, AdamW at the update" + (", accumulated" if accumulate else "") + ": weight sums stay"
    )
    verified("Keras", "keras", what, found, 1e-6)


def test_accumulated_gradients_are_centralized_once_together() -> None:
    one, two = model(), model(gradient_accumulation_steps=2)
    for net, size in ((one, 16), (two, 8)):
        attach(net.optimizer, net)
        net.fit(X, Y, batch_size=size, epochs=1, shuffle=False, verbose=0)
    for name, value in weights(one).items():
        torch.testing.assert_close(value, weights(two)[name], atol=1e-5, rtol=1e-4)


def test_layouts() -> None:
    keras.utils.set_random_seed(0)
    image = L.Input((8, 8, 4))
    x = L.Conv2D(6, 3, groups=2, name="grouped")(image)
    x = L.DepthwiseConv2D(3, depth_multiplier=2, name="depthwise")(x)
    x = L.SeparableConv2D(5, 2, name="separable")(x)
    x = L.BatchNormalization(name="norm")(x)
    x = L.Reshape((9, 5))(x)
    x = L.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = L.LSTM(7, name="lstm")(x)
    net = keras.Model(image, L.Dense(3, name="head")(x))
    rows = {row["parameter"]: row for row in explain(net).rows()}

    def of(path: str) -> tuple[int, int]:
        row = next(row for name, row in rows.items() if name.endswith(path))
        return row["vectors"], row["length"]

    assert of("grouped/kernel") == (6, 18)
    assert of("depthwise/kernel") == (12, 9)
    assert of("separable/depthwise_kernel") == (12, 4)
    assert of("separable/pointwise_kernel") == (5, 12)
    assert of("attention/query/kernel") == (8, 5)
    assert of("attention/attention_output/kernel") == (5, 8)
    assert of("lstm_cell/kernel") == (28, 5)
    assert of("lstm_cell/recurrent_kernel") == (28, 7)
    assert of("head/kernel") == (3, 7)
    assert of("norm/gamma") == (None, None)
    conv = {name for name, row in rows.items() if row["centralized"]}
    assert len(conv) == 11
    kept = {row["parameter"] for row in explain(net, layers="linear").rows() if row["centralized"]}
    assert not [name for name in kept if "grouped" in name or "separable" in name]
    assert not next(
        r for r in explain(net, overrides={"head/*": None}).rows() if r["parameter"] == "head/kernel"
    )["centralized"]
    rows = explain(net, overrides={keras.layers.Dense: None}).rows()
    assert {row["source"] for row in rows if row["parameter"] == "head/kernel"} == {"override"}


def test_refusals() -> None:
    net = model()
    attach(net.optimizer, net)
    with pytest.raises(ValueError, match="already"):
        attach(net.optimizer, net)
    detach(net.optimizer)
    with pytest.raises(ValueError, match="not attached"):
        detach(net.optimizer)
    with pytest.raises(ValueError, match="matches no variable"):
        attach(net.optimizer, net, overrides={"nothing": None})
    with pytest.raises(ValueError, match="at must be"):
        attach(net.optimizer, net, at="end")  # type: ignore[arg-type]
    other = model()
    attach(other.optimizer, net)
    with pytest.raises(ValueError, match="is not a variable of the model"):
        other.fit(X, Y, batch_size=8, verbose=0)
    with pytest.raises(TypeError, match="optimizer of Keras"):
        attach(torch.optim.SGD([torch.ones(2, 2, requires_grad=True)], lr=0.1), net)


def test_a_loss_scaled_optimizer_is_looked_into() -> None:
    net = model()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
    net.compile(optimizer=scaled, loss="mse")
    assert attach(net.optimizer, net) is scaled.inner_optimizer
    before = weights(net)
    net.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    after = weights(net)
    moved = (after["conv/kernel"] - before["conv/kernel"]).abs().max()
    assert moved > 1e-4
    for name in ("conv/kernel", "up/kernel"):
        assert (after[name] - before[name]).mean(AVERAGED[name]).abs().max() < 1e-6


@pytest.mark.slow
def test_example(verified: Any) -> None:
    what = "examples/integrations/with_keras.py: weight sums stay, float32"
    verified("Keras", "keras", what, drift_in_example("with_keras"), 1e-6)
