"""jax: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import RECLUSES, control

_jax = partial(control, "jax", "distributed")
_jax_train = partial(control, "jax", "train")

CONTROLS = (
    _jax(
        "singletons",
        "D0/D8.jax D8.jax/sum D8.jax/weight_first D8.jax/weight_last",
        before=RECLUSES,
    ),
    _jax(
        "no averaging",
        "D8.jax/weight_first D8.jax/weight_last",
        ('jax.lax.pmean(gradient, "ranks")', "gradient"),
    ),
    _jax("own share alone", "D8.jax/sum", ('jax.lax.psum(number[0], "ranks")', "number[0]")),
    _jax_train("a process that calls itself 0", "D0/D8.jax-train", ("rank=rank,", "rank=0,")),
    _jax_train(
        "gradients not added",
        "D8.jax-train/parameter_hash D8.jax-train/losses-as-one-rank D8.jax-train/parameters-as-one-rank",
        ('gradients = jax.lax.psum(gradients, "ranks")', "pass"),
    ),
    _jax_train(
        "all on one share",
        "D8.jax-train/losses-as-one-rank D8.jax-train/parameters-as-one-rank",
        ("share(rows, rank, size)", "share(rows, 0, size)"),
    ),
    _jax_train("fewer steps", "D8.jax-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
)
