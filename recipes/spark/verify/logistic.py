# /// job
# id: spark.logistic
# title: MLlib's logistic regression on N workers against Newton's method in one process, and one worker
# expect: {workers: n, holders: n, rows: 240}
# compare_with_single: {fit: 1.0e-6, loss: 1.0e-6}
# compare_with_reported: {fit: {newton: 1.0e-6}}
# hint: a rank's rows took no part in the fit
# controls:
#   a fit to a share of the rows: {fails: [fit-as-newton, fit-as-one-rank, loss-as-one-rank], least_ranks: 2}
#   all rows on one worker: {fails: [holders], least_ranks: 2}
# ///
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


def run_driver(member: cluster.ClusterMember) -> None:
    """Fit, and let each executor compute the loss of its share of the rows."""
    inputs, labels = data()
    rows = [(float(labels[at]), Vectors.dense(inputs[at])) for at in range(ROWS)]
    with cluster.application(member) as context:
        spread = context.parallelize(rows, member.size)
        # control all rows on one worker: placed = spread.coalesce(1)
        placed = spread
        frame = SparkSession(context).createDataFrame(placed, TYPES).cache()
        solver = LogisticRegression(regParam=0.0, standardization=False, tol=1e-10, maxIter=100)
        # control a fit to a share of the rows: model = solver.fit(frame.limit(ROWS // member.size))
        model = solver.fit(frame)
        holders = frame.rdd.mapPartitions(lambda _: [tasks.worker()]).collect()
        received = context.broadcast([*model.coefficients.tolist(), model.intercept])

        def weigh(share: "Iterator[tuple]") -> "Iterator[dict]":
            loss = 0.0
            for label, features in share:
                score = float(np.dot(received.value, [*features, 1.0]))
                loss += math.log1p(math.exp(score)) - label * score
            yield tasks.gather(losses=loss, fits=received.value, holders=len(set(holders)))

        spread.barrier().mapPartitions(weigh).collect()


def main() -> None:
    """Start the cluster, fit, and report the record of this rank's executor."""
    with cluster.joined() as member:
        cluster.run(run_driver, member)
        record = member.record()
    own = record["workers"].index(record["worker"])
    envbuild_job.report(
        rank=record["worker"],
        size=len(record["workers"]),
        workers=len(set(record["workers"])),
        holders=record["holders"][own],
        fit=record["fits"][own],
        newton=newton().tolist(),
        loss=sum(record["losses"]),
        rows=ROWS,
    )


if __name__ == "__main__":
    main()
