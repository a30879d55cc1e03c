"""Train a Keras model on one backend; its gradients pass through two pipes."""

import importlib
import os
import sys

import numpy as np
from envbuild_job import FEATURES, HIDDEN, ROWS, STEPS, training_data

NAME_BYTES = 16


def main() -> None:
    """Train on this rank's share; the pipes' numbers, rank and size are the arguments."""
    give, take, rank, size = map(int, sys.argv[1:5])
    out, back = os.fdopen(give, "wb"), os.fdopen(take, "rb")
    # Keras reads KERAS_BACKEND when it is imported: each backend has its own process.
    keras = importlib.import_module("keras")
    out.write(keras.backend.backend().encode().ljust(NAME_BYTES))

    def averaged(flat: np.ndarray) -> np.ndarray:
        out.write(flat.astype(np.float32).tobytes())
        out.flush()
        return np.frombuffer(back.read(flat.size * 4), dtype=np.float32)

    class Averaged(keras.optimizers.SGD):
        """Steps along the gradients that come back."""

        def apply(self, grads: list, trainable_variables: "list | None" = None) -> None:
            arrays = [keras.ops.convert_to_numpy(gradient) for gradient in grads]
            flat = averaged(np.concatenate([array.ravel() for array in arrays]))
            ends = np.cumsum([array.size for array in arrays])[:-1]
            parts = [part.reshape(arrays[at].shape) for at, part in enumerate(np.split(flat, ends))]
            super().apply([keras.ops.convert_to_tensor(part) for part in parts], trainable_variables)

    inputs, labels, starts = training_data(rank, size)
    layers = [keras.layers.Dense(HIDDEN, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    model.set_weights(starts)
    model.compile(
        optimizer=Averaged(0.05),
        # A share of the mean over all rows; shares of any size add up to it.
        loss=lambda wanted, found: keras.ops.sum(keras.ops.square(found - wanted)) / ROWS,
        run_eagerly=True,
    )
    losses = []
    for _ in range(STEPS):
        model.reset_metrics()
        losses.append(float(model.train_on_batch(inputs, labels)))
    averaged(np.array(losses))
    out.write(np.concatenate([weight.ravel() for weight in model.get_weights()]).tobytes())
    out.close()
