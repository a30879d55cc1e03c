"""MLlib's logistic regression on Spark's executors, against Newton's method on all rows in one process.

The labels are noisy, so that a fit to a share of the rows ends far from the
fit to all of them.
"""

import math
from collections.abc import Iterator

import cluster
import envbuild_job
import numpy as np
import tasks
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, StructField, StructType

ROWS, FEATURES = 240, 3
TYPES = StructType([StructField("label", DoubleType()), StructField("features", VectorUDT())])


def data() -> "tuple[np.ndarray, np.ndarray]":
    """Return inputs of shape (ROWS, FEATURES) and labels of shape (ROWS,), 0 or 1."""
    random = np.random.RandomState(2026)
    inputs = random.randn(ROWS, FEATURES)
    chances = 1 / (1 + np.exp(-(inputs @ np.array([1.0, -2.0, 0.5]) + 0.3)))
    return inputs, (random.uniform(size=ROWS) < chances).astype(np.float64)


def newton() -> np.ndarray:
    """Return the coefficients, then the intercept, that maximise the likelihood of all rows.

    Iteratively reweighted least squares; it converges quadratically, so that
    25 steps end at rounding.
    """
    inputs, labels = data()
    design = np.column_stack([inputs, np.ones(ROWS)])
    fitted = np.zeros(FEATURES + 1)
    for _ in range(25):
        chances = 1 / (1 + np.exp(-design @ fitted))
        curvature = design.T @ (design * (chances * (1 - chances))[:, np.newaxis])
        fitted += np.linalg.solve(curvature, design.T @ (labels - chances))
    return fitted


def drive(place: cluster.Place) -> None:
    """Fit, and have each executor weigh the fit on its share of the rows."""
    inputs, labels = data()
    rows = [(float(labels[at]), Vectors.dense(inputs[at])) for at in range(ROWS)]
    with cluster.application(place) as context:
        spread = context.parallelize(rows, place.size)
        frame = SparkSession(context).createDataFrame(spread, TYPES).cache()
        solver = LogisticRegression(regParam=0.0, standardization=False, tol=1e-10, maxIter=100)
        model = solver.fit(frame)
        holders = frame.rdd.mapPartitions(lambda _: [tasks.worker()]).collect()
        told = context.broadcast([*model.coefficients.tolist(), model.intercept])

        def weigh(share: "Iterator[tuple]") -> "Iterator[dict]":
            loss = 0.0
            for label, features in share:
                score = float(np.dot(told.value, [*features, 1.0]))
                loss += math.log1p(math.exp(score)) - label * score
            yield tasks.meet(losses=loss, fits=told.value, holders=len(set(holders)))

        spread.barrier().mapPartitions(weigh).collect()


def main() -> None:
    """Bring up the cluster, fit, and report what this rank's executor saw."""
    with cluster.joined() as place:
        cluster.run(drive, place)
        seen = place.seen()
    own = seen["workers"].index(seen["worker"])
    envbuild_job.report(
        rank=seen["worker"],
        size=len(seen["workers"]),
        workers=len(set(seen["workers"])),
        holders=seen["holders"][own],
        fit=seen["fits"][own],
        newton=newton().tolist(),
        loss=sum(seen["losses"]),
        rows=ROWS,
    )


if __name__ == "__main__":
    main()
