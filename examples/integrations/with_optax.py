"""Optax with GC for a Flax model: one link of the chain; at its end it is GC at the update."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from gradcent.integrations.optax import centralize, explain


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = jnp.tanh(nn.Conv(8, (3, 3))(x))
        return nn.Dense(4)(x.mean((1, 2)))


def main() -> None:
    model, x = Net(), jax.random.normal(jax.random.key(0), (16, 8, 8, 3))
    params = model.init(jax.random.key(1), x)
    before = params["params"]["Conv_0"]["kernel"].mean((0, 1, 2))
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(1e-2, weight_decay=0.1),
        centralize(model, x),  # the one line
    )
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        gradient = jax.grad(lambda p: ((model.apply(p, x) - 1) ** 2).mean())(params)
        change, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, change), state

    for _ in range(10):
        params, state = step(params, state)
    drift = jnp.abs(params["params"]["Conv_0"]["kernel"].mean((0, 1, 2)) - before).max()
    plan = explain(model, x)
    print(str(plan).split("\n\n")[-1])
    print(f"largest drift of a weight vector's mean: {float(drift):.1e}")


if __name__ == "__main__":
    main()
