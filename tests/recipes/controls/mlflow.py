"""mlflow: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_tracking = partial(control, "mlflow", "tracking")

CONTROLS = (
    _tracking("singletons", "D0/A2.mlflow", before=SINGLETONS),
    _tracking(
        "another run beside it",
        "A2.mlflow/runs",
        (
            "    with mlflow.start_run(",
            "    with mlflow.start_run(experiment_id=experiment):\n        pass\n    with mlflow.start_run(",
        ),
    ),
    _tracking(
        "a run that failed",
        "A2.mlflow/finished",
        ('"notes.txt")\n\n\n', '"notes.txt")\n        mlflow.end_run("FAILED")\n\n\n'),
    ),
    _tracking("the parameter of rank 0", "A2.mlflow/parameter", ('("rank", rank)', '("rank", 0)')),
    _tracking(
        "a step left out", "A2.mlflow/metric_steps A2.mlflow/metric_sum", ("range(1, 11)", "range(1, 10)")
    ),
    _tracking(
        "two values that make up for one another",
        "A2.mlflow/wrong_values",
        ("(rank + 1) * step, step=step", "(rank + 1) * step + (step == 3) - (step == 4), step=step"),
    ),
    _tracking("a rounded metric", "A2.mlflow/large_metric", ("2**53 - 1 - rank", "2**53 - 2**20")),
    _tracking("a shorter artifact", "A2.mlflow/artifact_bytes", ("(1000 + rank)", "(999 + rank)")),
)
