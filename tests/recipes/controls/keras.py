"""keras: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_keras = partial(control, "keras", "backends")

CONTROLS = (
    _keras("singletons", "D0/D9.keras", before=SINGLETONS),
    _keras(
        "gradients not added",
        "D9.keras/parameter_hash D9.keras/losses-as-one-rank D9.keras/parameters-as-one-rank",
        ("comm.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)", "pass"),
    ),
    _keras(
        "other backends on each rank",
        "D9.keras/backends",
        ("backends=backends,", "backends=backends[comm.rank :],"),
    ),
    # Of an image that holds several.
    _keras(
        "one backend for all",
        "D9.keras/left_out",
        ('"KERAS_BACKEND": backend', '"KERAS_BACKEND": next(filter(importlib.util.find_spec, BACKENDS))'),
    ),
    _keras(
        "no backend",
        "D9.keras/trained D9.keras/steps",
        ("if importlib.util.find_spec(name)]", "if not name]"),
    ),
    _keras("fewer losses", "D9.keras/steps", ("steps=sum(", "steps=-1 + sum(")),
)
