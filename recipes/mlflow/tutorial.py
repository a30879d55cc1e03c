"""From MLflow's tracking quickstart, with a store in a file of SQLite's."""

import mlflow

mlflow.set_tracking_uri("sqlite:///mlflow.db")
with mlflow.start_run() as run:
    mlflow.log_param("solver", "lbfgs")
    mlflow.log_metric("accuracy", 0.98)
print(mlflow.get_run(run.info.run_id).data.metrics)
