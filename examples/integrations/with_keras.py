"""Keras 3 on the torch backend with GC: attach to the optimizer of the compiled model."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

from gradcent.integrations.keras import attach, explain


def main() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((12, 12, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(4),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    attach(model.optimizer, model, at="update")  # the one line
    before = keras.ops.convert_to_numpy(model.layers[0].kernel).mean((0, 1, 2))
    images, labels = np.random.randn(64, 12, 12, 3).astype("float32"), np.arange(64) % 4
    model.fit(images, labels, batch_size=8, epochs=2, verbose=0)
    after = keras.ops.convert_to_numpy(model.layers[0].kernel).mean((0, 1, 2))
    print(explain(model).summary())
    print(f"largest drift of a weight vector's mean: {np.abs(after - before).max():.1e}")


if __name__ == "__main__":
    main()
