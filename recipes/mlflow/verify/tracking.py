"""A run is logged with MLflow and read back exactly.

Each rank has a store of its own, a SQLite file in a directory of its own: many
writers of one file need locks, which shared file systems do not promise.
"""

import tempfile
from pathlib import Path

import envbuild_job
import mlflow


def log(rank: int, directory: Path) -> None:
    """Log a run: a parameter, two metrics and an artifact."""
    experiment = mlflow.create_experiment("ranks", artifact_location=(directory / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment, run_name=f"rank-{rank}"):
        mlflow.log_param("rank", rank)
        for step in range(1, 11):
            mlflow.log_metric("multiple", (rank + 1) * step, step=step)
        # The largest integers that float64 holds exactly.
        mlflow.log_metric("large", 2**53 - 1 - rank)
        mlflow.log_text("x" * (1000 + rank), "notes.txt")


def main() -> None:
    """Log a run, read it back with a client that knows the store alone, and report."""
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
        notes = Path(client.download_artifacts(run.info.run_id, "notes.txt")).read_text(encoding="utf-8")
        envbuild_job.report(
            rank=rank,
            size=size,
            runs=len(runs),
            finished=int(run.info.status == "FINISHED"),
            parameter=int(run.data.params["rank"]),
            metric_steps=len({each.step for each in multiples}),
            metric_sum=sum(each.value for each in multiples),
            least_a_step=min(each.value / each.step for each in multiples),
            most_a_step=max(each.value / each.step for each in multiples),
            large_metric=int(run.data.metrics["large"]),
            artifact_bytes=notes.count("x"),
        )


if __name__ == "__main__":
    main()
