"""MLflow's runs of a job reach a real tracking server, once and whole."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "recipes/mlflow/plugins/envbuild_mlflow.py"
VERSION = "3.17.2"
JOB = """
import mlflow
from mlflow.entities import Metric
mlflow.set_tracking_uri("sqlite:///runs.db")
client = mlflow.MlflowClient()
experiment = mlflow.create_experiment("words", artifact_location="ART")
for index in range(3):
    with mlflow.start_run(experiment_id=experiment, run_name=f"run {index}") as run:
        mlflow.log_param("rate", index / 7)
        mlflow.set_tag("kind", "test")
        # More than the server takes at once.
        steps = range(1200 if index == 0 else 3)
        losses = [Metric("loss", index + 1 / (step + 1), 1000 + step, step) for step in steps]
        client.log_batch(run.info.run_id, metrics=losses[:1000])
        client.log_batch(run.info.run_id, metrics=losses[1000:])
        # A server does not say that a file is empty.
        mlflow.log_text("x" * (index + 1), "notes/length.txt")
running = client.create_run(experiment, start_time=500, run_name="still running")
client.log_metric(running.info.run_id, "loss", 0.25, timestamp=1500)
"""
# All that a client sees of the runs of a store, but for what a copy adds and ids.
SHOW = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
experiment = client.get_experiment_by_name("words")
shown = []
for run in client.search_runs([experiment.experiment_id], "attributes.status = 'FINISHED'"):
    history = client.get_metric_history(run.info.run_id, "loss")
    tags = {k: v for k, v in run.data.tags.items() if k not in ("envbuild.origin", "envbuild.copied")}
    notes = [[file.path, file.file_size] for file in client.list_artifacts(run.info.run_id, "notes")]
    loss = sorted([metric.step, metric.value, metric.timestamp] for metric in history)
    times = [run.info.start_time, run.info.end_time]
    shown.append([run.info.run_name, times, run.data.params, tags, loss, notes])
print(json.dumps(sorted(shown), sort_keys=True))
"""


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with MLflow and its server."""
    venv = tmp_path_factory.mktemp("mlflow") / "venv"
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    words: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        venv / "bin/python",
        f"mlflow=={VERSION}",
    ]
    subprocess.run(words, check=True)
    return venv / "bin/python"


@pytest.fixture(scope="module")
def server(mlflow: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tracking server on the loopback."""
    place = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", "sqlite:///server.db", "--artifacts-destination", str(place / "files")]
    with (place / "log").open("wb") as log:
        running = subprocess.Popen(
            [mlflow.with_name("mlflow"), *words],
            cwd=place,
            env=variables(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 300
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=5).close()  # noqa: S310  # the loopback
                break
            assert running.poll() is None, (place / "log").read_text()
            assert time.monotonic() < end, (place / "log").read_text()
            time.sleep(1)
        yield url
    finally:
        os.killpg(running.pid, 15)
        running.wait(timeout=60)


def variables() -> dict[str, str]:
    once = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    return {**os.environ, **once, "MLFLOW_DISABLE_TELEMETRY": "true", "GIT_PYTHON_REFRESH": "quiet"}


def run(python: Path, *words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [python, *words]
    return subprocess.run(line, cwd=cwd, env=variables(), capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_runs_reach_a_server_once_and_whole(mlflow: Path, server: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB.replace("ART", (tmp_path / "files").as_uri()))
    (tmp_path / "show.py").write_text(SHOW)
    done = run(mlflow, "job.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = f"sqlite:///{tmp_path}/runs.db"
    token = tmp_path / "token"
    token.write_text("secret\n")
    words: list[str | Path] = ["sync", store, "--to", server, "--token-file", token]

    token.chmod(0o640)
    refused = run(mlflow, PLUGIN, *words, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith(f"chmod 600 {token}\n")
    token.chmod(0o600)
    far = run(mlflow, PLUGIN, *words[:3], "http://mlflow.example.org", *words[4:], cwd=tmp_path)
    assert "unencrypted to mlflow.example.org" in far.stderr
    absent = run(mlflow, PLUGIN, "sync", "sqlite:///absent.db", "--to", server, cwd=tmp_path)
    assert "`sqlite:///absent.db` is not a store" in absent.stderr
    assert not (tmp_path / "absent.db").exists()
    (tmp_path / "notes.txt").write_text("not a database")
    errors = [
        (store, "http://127.0.0.1:9", "was not copied to http://127.0.0.1:9"),
        (store, "http://[::1", "is not the address of a server"),
        (store, "https://me:secret@mlflow.example.org", "leave it out"),
        (f"sqlite:///{tmp_path}/notes.txt", server, "was not copied"),
    ]
    for source, address, reason in errors:
        wrong = run(mlflow, PLUGIN, "sync", source, "--to", address, cwd=tmp_path)
        assert wrong.returncode == 1
        assert "copied\n" not in wrong.stdout
        assert reason in wrong.stderr
        assert "Traceback" not in wrong.stderr
        assert "secret" not in wrong.stderr
    token.write_text("sécret\n")
    wrong = run(mlflow, PLUGIN, *words, cwd=tmp_path)
    assert "must have one token" in wrong.stderr
    token.write_text("secret\n")

    first = run(mlflow, PLUGIN, *words, cwd=tmp_path)
    # A run that has not ended waits.
    assert first.returncode == 1, first.stderr
    assert sorted(line.split()[1] for line in first.stdout.splitlines()) == ["copied"] * 3 + ["waits:"]
    there = run(mlflow, "show.py", server, cwd=tmp_path).stdout
    assert there == run(mlflow, "show.py", store, cwd=tmp_path).stdout
    assert len(json.loads(there)) == 3

    # One that was interrupted before its end is completed, and the others are skipped.
    undo = "from mlflow import MlflowClient; import sys; c = MlflowClient(tracking_uri=sys.argv[1]);"
    undo += "e = c.get_experiment_by_name('words'); r = c.search_runs([e.experiment_id])[0].info.run_id;"
    undo += "c.delete_tag(r, 'envbuild.copied'); c.update_run(r, status='RUNNING')"
    assert run(mlflow, "-c", undo, server, cwd=tmp_path).returncode == 0
    again = run(mlflow, PLUGIN, *words, cwd=tmp_path)
    assert sorted(line.split(maxsplit=1)[1] for line in again.stdout.splitlines()) == [
        "completed",
        "waits: RUNNING",
        "was there",
        "was there",
    ]
    assert run(mlflow, "show.py", server, cwd=tmp_path).stdout == there

    # The job was killed: its run is copied as such, once.
    for outcome in ("copied", "was there"):
        killed = run(mlflow, PLUGIN, *words, "--ended", cwd=tmp_path)
        assert killed.returncode == 0, killed.stderr
        assert sorted(line.split(maxsplit=1)[1] for line in killed.stdout.splitlines()) == sorted(
            [outcome, "was there", "was there", "was there"]
        )
    show = SHOW.replace("FINISHED", "KILLED")
    ((name, times, _, _, loss, _),) = json.loads(run(mlflow, "-c", show, server, cwd=tmp_path).stdout)
    assert (name, times, loss) == ("still running", [500, 1500], [[0, 0.25, 1500]])
