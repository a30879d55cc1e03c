"""From JAX's quickstart: a function, its gradient, compiled."""

import jax
import jax.numpy as jnp


def sum_logistic(x: jax.Array) -> jax.Array:  # noqa: D103
    return jnp.sum(1.0 / (1.0 + jnp.exp(-x)))


print(jax.jit(jax.grad(sum_logistic))(jnp.arange(3.0)))
