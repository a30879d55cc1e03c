# /// job
# id: mlflow.tracking
# title: a run of its own logged by each rank to a SQLite store and read back exactly
# expect:
#   runs: 1
#   finished: 1
#   parameter: r
#   metric_steps: 10
#   metric_sum: (r + 1)*55
#   least_a_step: r + 1
#   most_a_step: r + 1
#   large_metric: 2**53 - 1 - r
#   artifact_bytes: 1000 + r
#   knows_image: 1
# hint: what was logged is not what is read back
# controls:
#   another run beside it: [runs]
#   the parameter of rank 0: {fails: [parameter], least_ranks: 2}
#   two values that make up for one another: [least_a_step, most_a_step]
#   a rounded metric: [large_metric]
#   a run that does not know its image: [knows_image]
# ///
"""A run is logged with MLflow and read back exactly.

Each rank has its own store, a SQLite file in its own directory: several writers of one file need locks,
which shared file systems do not promise.
"""

import json
import tempfile
from pathlib import Path

import envbuild_job
import mlflow


def log(rank: int, directory: Path) -> None:
    """Log a run: a parameter, two metrics and an artifact."""
    artifacts = (directory / "artifacts").as_uri()
    experiment = mlflow.create_experiment("ranks", artifact_location=artifacts)
    # control another run beside it: mlflow.start_run(experiment_id=experiment)
    # control another run beside it: mlflow.end_run()
    # control another run beside it: with mlflow.start_run(experiment_id=experiment, run_name="second"):
    with mlflow.start_run(experiment_id=experiment, run_name=f"rank-{rank}"):
        # control the parameter of rank 0: mlflow.log_param("rank", 0)
        mlflow.log_param("rank", rank)
        for step in range(1, 11):
            value = (rank + 1) * step
            # control two values that make up for one another: value += (step == 3) - (step == 4)
            # control two values that make up for one another: mlflow.log_metric("multiple", value, step=step)
            mlflow.log_metric("multiple", value, step=step)
        # The largest integers that float64 holds exactly.
        # control a rounded metric: mlflow.log_metric("large", 2**53 - 2**20)
        mlflow.log_metric("large", 2**53 - 1 - rank)
        # control a run that does not know its image: mlflow.set_tag("envbuild.lock_digest", "unknown")
        # control a run that does not know its image: mlflow.log_text("x" * (1000 + rank), "notes.txt")
        mlflow.log_text("x" * (1000 + rank), "notes.txt")


def main() -> None:
    """Log a run, read it back with a client that knows only the store, and report."""
    rank, size = envbuild_job.launched()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        store = f"sqlite:///{directory}/runs.db"
        mlflow.set_tracking_uri(store)
        log(rank, directory)

        client = mlflow.MlflowClient(tracking_uri=store)
        experiment = client.get_experiment_by_name("ranks")
        runs = client.search_runs([experiment.experiment_id])
        run = runs[0]
        multiples = client.get_metric_history(run.info.run_id, "multiple")
        manifest = json.loads(Path("/.envbuild/manifest.json").read_text(encoding="utf-8"))
        notes = Path(client.download_artifacts(run.info.run_id, "notes.txt")).read_text(encoding="utf-8")
        envbuild_job.report(
            rank=rank,
            size=size,
            runs=len(runs),
            finished=int(run.info.status == "FINISHED"),
            parameter=int(run.data.params["rank"]),
            metric_steps=len({metric.step for metric in multiples}),
            metric_sum=sum(metric.value for metric in multiples),
            least_a_step=min(metric.value / metric.step for metric in multiples),
            most_a_step=max(metric.value / metric.step for metric in multiples),
            large_metric=int(run.data.metrics["large"]),
            artifact_bytes=notes.count("x"),
            knows_image=int(run.data.tags.get("envbuild.lock_digest") == manifest["lock_digest"]),
        )


if __name__ == "__main__":
    main()
