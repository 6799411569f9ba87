"""Optax with Flax (linen, nnx) and Equinox, against the torch result on the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_examples import drift_in_example

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
pytestmark = pytest.mark.filterwarnings("ignore")
if jax:
    import equinox as eqx
    import flax.linen as nn
    import jax.numpy as jnp
    from flax import nnx

    import gradcent
    from gradcent.integrations.optax import centralize, explain

X = np.random.RandomState(0).randn(20, 6, 5).astype(np.float32)
Y = np.random.RandomState(1).randn(20, 6, 3).astype(np.float32)


def torch_run(at: str) -> dict[str, np.ndarray]:
    """Two linear layers, SGD with momentum and coupled decay (or AdamW at the update), with gradcent."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    start = {name: each.detach().numpy().copy() for name, each in net.named_parameters()}
    if at == "gradient":
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.05)
    gradcent.attach(optimizer, net, at=at)  # type: ignore[arg-type]
    for x, y in zip(X, Y, strict=True):
        optimizer.zero_grad()
        ((net(torch.tensor(x)) - torch.tensor(y)) ** 2).mean().backward()
        optimizer.step()
    end = {name: each.detach().numpy() for name, each in net.named_parameters()}
    return {"start": start, "end": end}  # type: ignore[dict-item]


def chain(at: str, transform: Any) -> Any:
    if at == "gradient":
        return optax.chain(optax.add_decayed_weights(0.05), transform, optax.sgd(0.1, momentum=0.9))
    return optax.chain(optax.adamw(0.01, weight_decay=0.05), transform)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3, name="b")(jnp.tanh(nn.Dense(4, name="a")(x)))


@pytest.mark.parametrize("at", ["gradient", "update"])
def test_linen(at: str, verified: Any) -> None:
    truth = torch_run(at)
    start = truth["start"]
    params = {
        "params": {
            "a": {"kernel": jnp.array(start["0.weight"].T), "bias": jnp.array(start["0.bias"])},
            "b": {"kernel": jnp.array(start["2.weight"].T), "bias": jnp.array(start["2.bias"])},
        }
    }
    model = Linen()
    optimizer = chain(at, centralize(model, X[0]))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(lambda p: ((model.apply(p, x) - y) ** 2).mean())(params)
        change, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, change), state

    for x, y in zip(X, Y, strict=True):
        params, state = step(params, state, x, y)
    assert step._cache_size() == 1  # no recompilation after the first call
    ours = params["params"]
    found = max(
        np.abs(np.asarray(ours["a"]["kernel"]).T - truth["end"]["0.weight"]).max(),
        np.abs(np.asarray(ours["b"]["kernel"]).T - truth["end"]["2.weight"]).max(),
        np.abs(np.asarray(ours["b"]["bias"]) - truth["end"]["2.bias"]).max(),
    )
    verified(
        "JAX: optax + flax.linen", "flax", f"at the {at}: 20 jitted steps equal torch's", float(found), 1e-5
    )


@pytest.mark.parametrize("at", ["gradient", "update"])
def test_equinox(at: str, verified: Any) -> None:
    truth = torch_run(at)
    start = truth["start"]
    model = eqx.nn.MLP(5, 3, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    for index, name in ((0, "0"), (1, "2")):
        model = eqx.tree_at(lambda m, i=index: m.layers[i].weight, model, jnp.array(start[f"{name}.weight"]))
        model = eqx.tree_at(lambda m, i=index: m.layers[i].bias, model, jnp.array(start[f"{name}.bias"]))
    optimizer = chain(at, centralize(model))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    for x, y in zip(X, Y, strict=True):
        gradient = eqx.filter_grad(lambda m, x=x, y=y: ((jax.vmap(m)(x) - y) ** 2).mean())(model)
        change, state = optimizer.update(gradient, state, eqx.filter(model, eqx.is_inexact_array))
        model = eqx.apply_updates(model, change)
    found = max(
        np.abs(np.asarray(model.layers[index].weight) - truth["end"][f"{name}.weight"]).max()
        for index, name in ((0, "0"), (1, "2"))
    )
    verified("JAX: optax + Equinox", "equinox", f"at the {at}: 20 steps equal torch's", float(found), 1e-5)


def test_nnx(verified: Any) -> None:
    truth = torch_run("gradient")
    start = truth["start"]

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.a, self.b = nnx.Linear(5, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 3, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            return self.b(jnp.tanh(self.a(x)))

    model = Model()
    for layer, name in ((model.a, "0"), (model.b, "2")):
        layer.kernel[...] = jnp.array(start[f"{name}.weight"].T)
        layer.bias[...] = jnp.array(start[f"{name}.bias"])
    optimizer = nnx.Optimizer(model, chain("gradient", centralize(model)), wrt=nnx.Param)
    for x, y in zip(X, Y, strict=True):
        gradient = nnx.grad(lambda m, x=x, y=y: ((m(x) - y) ** 2).mean())(model)
        optimizer.update(model, gradient)
    found = max(
        np.abs(np.asarray(layer.kernel[...]).T - truth["end"][f"{name}.weight"]).max()
        for layer, name in ((model.a, "0"), (model.b, "2"))
    )
    verified("JAX: optax + flax.nnx", "flax", "20 steps equal torch's", float(found), 1e-5)


class Holder(eqx.Module):
    inner: Any


class Many(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(8, (3, 3), feature_group_count=1)(x)
        x = nn.Conv(8, (3, 3), feature_group_count=8, name="depthwise")(x)
        x = nn.ConvTranspose(4, (2, 2), transpose_kernel=True, name="turned")(x)
        x = nn.ConvTranspose(4, (2, 2), name="up")(x)
        x = x.reshape(x.shape[0], -1, 4)
        x = nn.MultiHeadDotProductAttention(2, name="attention")(x)
        x = nn.LayerNorm(name="norm")(x)
        return nn.Dense(3, name="head")(x.mean(1))


def test_layouts_of_flax_layers() -> None:
    """Each kernel's vectors by what they compute: one mean per output channel."""
    plan = explain(Many(), jnp.zeros((2, 6, 6, 3)))
    lengths = {row["parameter"]: (row["vectors"], row["length"]) for row in plan.rows()}
    assert lengths["Conv_0.kernel"] == (8, 27)
    assert lengths["depthwise.kernel"] == (8, 9)
    assert lengths["turned.kernel"] == (4, 2 * 2 * 8)
    assert lengths["up.kernel"] == (4, 2 * 2 * 4)
    assert lengths["attention.query.kernel"] == (4, 4)
    assert lengths["attention.out.kernel"] == (4, 4)
    assert lengths["norm.scale"] == (None, None)
    assert plan.entry(("turned", "kernel")).layout == gradcent.Layout(1, 4, 4, 8)
    assert "scale" in str(plan)


def test_layers_and_overrides() -> None:
    x = jnp.zeros((2, 6, 6, 3))
    conv = {row["parameter"] for row in explain(Many(), x, layers="conv").rows() if row["centralized"]}
    assert conv == {"Conv_0.kernel", "depthwise.kernel", "turned.kernel", "up.kernel"}
    rows = explain(Many(), x, overrides={"head.*": None}).rows()
    assert next(row for row in rows if row["parameter"] == "head.kernel")["centralized"] is False
    with pytest.raises(ValueError, match="matches no parameter"):
        explain(Many(), x, overrides={"nothing": None})
    with pytest.raises(TypeError, match="inputs"):
        explain(Many())
    with pytest.raises(ValueError, match="not in the model"):
        centralize(Many(), x).init({"params": {"stranger": jnp.zeros((2, 2))}})


def test_equinox_convolutions_and_cells() -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    model = {
        "conv": eqx.nn.Conv2d(6, 4, 3, groups=2, key=keys[0]),
        "up": eqx.nn.ConvTranspose2d(6, 4, 3, groups=2, key=keys[1]),
        "cell": eqx.nn.GRUCell(3, 4, key=keys[2]),
        "table": eqx.nn.Embedding(7, 3, key=keys[3]),
        "norm": eqx.nn.LayerNorm((4, 3)),
    }

    rows = {row["parameter"]: row for row in explain(Holder(model)).rows()}
    assert (rows["inner.conv.weight"]["vectors"], rows["inner.conv.weight"]["length"]) == (4, 27)
    assert (rows["inner.up.weight"]["vectors"], rows["inner.up.weight"]["length"]) == (4, 27)
    assert (rows["inner.cell.weight_hh"]["vectors"], rows["inner.cell.weight_hh"]["length"]) == (12, 4)
    assert rows["inner.table.weight"]["reason"] == "embedding"
    assert rows["inner.norm.weight"]["reason"] == "scale of a normalization"


class Stack(nn.Module):
    axis: int = 0

    @nn.compact
    def __call__(self, x: Any) -> Any:
        class Block(nn.Module):
            @nn.compact
            def __call__(self, x: Any, _: Any) -> Any:
                x = nn.Dense(5, use_bias=False, name="first")(x)
                return jnp.tanh(nn.Dense(6, use_bias=False, name="inside")(x)), None

        scan = nn.scan(Block, variable_axes={"params": self.axis}, split_rngs={"params": True}, length=3)
        return nn.Dense(2, name="head")(scan(name="blocks")(x, None)[0])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_layers_stacked_by_scan_are_told_apart(axis: int) -> None:
    """A kernel of three scanned layers is three kernels: each has its own means."""
    from gradcent.integrations.optax import centralized

    plan = explain(Stack(axis), jnp.zeros((2, 6)))
    entry = plan.entry(("blocks", "inside", "kernel"))
    assert entry.layout is not None
    assert (entry.layout.count, entry.layout.length) == (18, 5)
    gradient = jax.random.normal(jax.random.key(0), entry.shape)
    alone = jnp.moveaxis(gradient, axis, 0)
    expected = jnp.moveaxis(alone - alone.mean(1, keepdims=True), 0, axis)
    assert jnp.allclose(centralized(gradient, entry.layout), expected, atol=1e-6)


def test_layers_stacked_by_vmap_are_told_apart() -> None:
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def make(rngs: Any) -> Any:
        return nnx.Linear(4, 5, rngs=rngs)

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.many, self.conv = make(nnx.Rngs(0)), nnx.Conv(4, 6, (3, 3), rngs=nnx.Rngs(1))

    rows = {row["parameter"]: row for row in explain(Model()).rows()}
    assert (rows["many.kernel"]["vectors"], rows["many.kernel"]["length"]) == (15, 4)
    assert (rows["conv.kernel"]["vectors"], rows["conv.kernel"]["length"]) == (6, 36)
    keys = jax.random.split(jax.random.key(0), 4)
    model = eqx.filter_vmap(lambda key: [eqx.nn.Conv2d(2, 3, 3, key=key), eqx.nn.Linear(5, 3, key=key)])(keys)
    rows = {row["parameter"]: row for row in explain(Holder(model)).rows()}
    assert (rows["inner.0.weight"]["vectors"], rows["inner.0.weight"]["length"]) == (12, 18)
    assert (rows["inner.1.weight"]["vectors"], rows["inner.1.weight"]["length"]) == (12, 5)


def test_a_stack_that_could_be_two_things_is_left_to_the_user() -> None:
    """Three layers of (3, 6): which of the two dims of 3 counts the layers cannot be seen."""

    class Small(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            class Block(nn.Module):
                @nn.compact
                def __call__(self, x: Any, _: Any) -> Any:
                    return nn.Dense(3, name="back")(nn.Dense(6, name="out")(x)), None

            scan = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            return scan(name="blocks")(x, None)[0]

    rows = {row["parameter"]: row for row in explain(Small(), jnp.zeros((2, 3))).rows()}
    assert "not clear: choose by override" in rows["blocks.out.kernel"]["reason"]
    assert rows["blocks.back.kernel"]["vectors"] == 9


def test_optax_own_transform_averages_the_wrong_side() -> None:
    """What makes this one needed: a Dense kernel (in, out) must have one mean per output."""
    kernel = {"params": {"a": {"kernel": jnp.arange(20.0).reshape(5, 4), "bias": jnp.ones(4)}}}

    class One(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4, name="a")(x)

    ours, _ = centralize(One(), X[0]).update(kernel, optax.EmptyState())
    theirs, _ = optax.centralize().update(kernel, optax.EmptyState())
    assert jnp.allclose(ours["params"]["a"]["kernel"].mean(0), 0)
    assert not jnp.allclose(theirs["params"]["a"]["kernel"].mean(0), 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_constant_vectors_come_out_zero(dtype: str) -> None:
    from gradcent.integrations.optax import centralized

    array = jnp.full((4099, 3), 0.1, dtype=dtype)
    assert not np.asarray(centralized(array, gradcent.Layout.columns(array.shape)), dtype=np.float32).any()


@pytest.mark.slow
def test_example(verified: Any) -> None:
    what = "examples/integrations/with_optax.py: weight sums stay, float32"
    verified("JAX: optax + flax.linen", "optax", what, drift_in_example("with_optax"), 1e-6)


def test_any_function_is_planned_from_its_jaxpr() -> None:
    """The layouts of a plain function are those that its author contracts; the optimizer keeps the sums."""
    shapes = {
        **{"qkv": (18, 6), "o": (2, 3, 6), "up": (6, 10), "down": (6, 10), "scale": (6,), "table": (9, 6)},
        **{"experts": (3, 6, 4), "kernel": (3, 3, 1, 5), "deep": (4, 6, 6), "gain": (10,)},
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    params = {
        name: jax.random.normal(key, shape) * 0.3
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }

    def apply(p: Any, x: Any, ids: Any) -> Any:
        x = x * p["scale"] + p["table"][ids]
        q, k, v = jnp.split(p["qkv"], 3)
        h = (x @ q.T) * (x @ k.T) + x @ v.T
        h = jnp.einsum("bhd,hdi->bi", h.reshape(-1, 2, 3), p["o"])
        h = jax.nn.relu(jax.jit(lambda w, y: y @ w)(p["up"], h))
        h = h @ (p["down"] * p["gain"] / jnp.linalg.norm(p["down"], axis=0)).T
        mixed = jnp.einsum("bi,eio->ebo", h, p["experts"])
        h, _ = jax.lax.scan(lambda carry, w: (jnp.tanh(carry @ w), None), h, p["deep"])
        numbers = ("NHWC", "HWIO", "NHWC")
        image = jax.lax.conv_general_dilated(
            h.reshape(-1, 2, 3, 1), p["kernel"], (1, 1), "SAME", dimension_numbers=numbers
        )
        return 5 * (mixed**2).sum() + 5 * (image**2).sum()

    x, ids = jnp.ones((4, 6)) + jnp.arange(6) * 0.1, jnp.arange(4)
    plan = explain(apply, params, x, ids)
    averaged = {
        **{"qkv": (1,), "o": (0, 1), "up": (0,), "down": (1,), "experts": (1,), "kernel": (0, 1, 2)},
        **{"deep": (1,), "scale": None, "table": None, "gain": None},
    }
    optimizer = optax.chain(centralize(apply, params, x, ids), optax.sgd(0.05, momentum=0.9))
    state, trained = optimizer.init(params), params
    for _ in range(3):
        gradients = jax.grad(apply)(trained, x, ids)
        updates, state = optimizer.update(gradients, state, trained)
        trained = optax.apply_updates(trained, updates)
    for name, dims in averaged.items():
        entry = plan.entry((name,))
        assert entry is not None
        assert (entry.layout is None) == (dims is None), (name, entry.reason)
        if dims is not None:
            assert entry.source == "trace"
            drift = jnp.abs(trained[name].sum(dims) - params[name].sum(dims)).max()
            moved = jnp.abs(trained[name] - params[name]).max()
            assert moved > 1e-4
            assert drift < 1e-2 * moved


def test_roles_of_a_function() -> None:
    """Layers that read the inputs are input layers; behind a contraction or a table look-up they are hidden."""
    shapes = {
        "stem": (6, 8),
        "hidden": (8, 8),
        "table": (9, 8),
        "word": (8, 8),
        "cell": (8, 8),
        "drive": (6, 8),
    }
    params = {
        name: jax.random.normal(jax.random.key(number), shape)
        for number, (name, shape) in enumerate(shapes.items())
    }

    def apply(p: Any, x: Any, ids: Any) -> Any:
        h = jnp.tanh((x - x.mean(0)) @ p["stem"]) @ p["hidden"] + p["table"][ids] @ p["word"]
        start = jnp.zeros(8)
        last, _ = jax.lax.scan(lambda c, row: (jnp.tanh(c @ p["cell"] + row @ p["drive"]), None), start, x)
        return h.sum() + last.sum()

    inputs = (params, jnp.ones((4, 6)), jnp.arange(4))
    roles = {entry.name: entry.role for entry in explain(apply, *inputs).entries}
    expected = {"stem": "input", "drive": "input", "hidden": "hidden", "word": "hidden", "cell": "hidden"}
    assert roles == {**expected, "table": None}
    for role in ("input", "hidden"):
        plan = explain(apply, *inputs, layers=role)
        chosen = {entry.name for entry in plan.entries if entry.layout is not None}
        assert chosen == {name for name, value in expected.items() if value == role}


def test_roles_and_lengths_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"pass the model's function, centralize\(apply, params, x"):
        explain(nn.Dense(4), jnp.zeros((2, 5)), layers="hidden")
    with pytest.raises(ValueError, match="min_length must be an integer of 2 or more"):
        explain(nn.Dense(4), jnp.zeros((2, 5)), min_length=1)


def test_min_length() -> None:
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3, name="out")(nn.Dense(2, name="narrow")(x))

    def chosen(**options: Any) -> set[str]:
        plan = explain(Two(), jnp.zeros((2, 5)), **options)
        return {entry.name for entry in plan.entries if entry.layout is not None}

    assert chosen() == {"narrow.kernel"}
    assert chosen(min_length=2) == {"narrow.kernel", "out.kernel"}
    gradients = {
        "params": {"narrow": {"kernel": jnp.ones((5, 2))}, "out": {"kernel": jnp.arange(6.0).reshape(2, 3)}}
    }
    centralized, _ = centralize(Two(), jnp.zeros((2, 5)), min_length=2).update(gradients, optax.EmptyState())
    assert jnp.allclose(centralized["params"]["out"]["kernel"].mean(0), 0)
