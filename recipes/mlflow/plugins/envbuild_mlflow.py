"""MLflow's runs know the image that they ran in, and reach a tracking server after their job.

    python -m envbuild_mlflow sync sqlite:///runs.db --to https://mlflow.example.org --token-file FILE

`RunContext` is a plug-in of MLflow: it tags each run of `mlflow.start_run`. `sync` copies finished runs from
the stores of jobs to a server, with `--ended` also those that a killed job left without an end. It can be
repeated: a run that was copied whole is skipped, and one that was interrupted is completed. A run is found
again by the id that it has in its job.
"""

import argparse
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

MANIFEST = Path("/.envbuild/manifest.json")
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID")
UNKNOWN = "unknown"
ORIGIN, COPIED = "envbuild.origin", "envbuild.copied"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TOKEN_BYTES = 16_384
# As MLflow's REST API takes them at once.
_METRICS, _PARAMS = 1000, 100
_FINISHED = ("FINISHED", "FAILED", "KILLED")


class RunContext:
    """The image, its lock, site, verdict and job, as tags; a value that is not stated is `unknown`.

    It has the methods of MLflow's RunContextProvider. That class is not imported: MLflow loads this module
    while it is imported itself.
    """

    def in_context(self) -> bool:
        """Return whether this is an image of envbuild."""
        return MANIFEST.is_file()

    def tags(self) -> dict[str, str]:
        """Return the tags of a run."""
        manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
        return {
            "envbuild.image": f"{manifest['name']}/{manifest['version']}",
            "envbuild.image_digest": os.environ.get("ENVBUILD_INSIDE") or UNKNOWN,
            "envbuild.lock_digest": manifest["lock_digest"],
            "envbuild.site": os.environ.get("ENVBUILD_SITE") or UNKNOWN,
            "envbuild.verdict": os.environ.get("ENVBUILD_VERDICT") or UNKNOWN,
            "envbuild.job": next((os.environ[name] for name in JOBS if os.environ.get(name)), "none"),
        }


class SyncError(Exception):
    """Runs cannot be copied; the text says why, and what to do."""


def main(arguments: list[str]) -> None:
    """Copy runs, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m envbuild_mlflow", description="Copies MLflow's runs.")
    verb = parser.add_subparsers(dest="verb", required=True).add_parser("sync", help="copy runs to a server")
    verb.add_argument("stores", nargs="+", metavar="STORE", help="sqlite:///PATH of a job")
    verb.add_argument("--to", required=True, metavar="URL", help="the tracking server")
    verb.add_argument("--token-file", type=Path, metavar="FILE", help="a file of mode 0600 with its token")
    help_ended = "the jobs have ended: copy a run without an end as killed"
    verb.add_argument("--ended", action="store_true", help=help_ended)
    options = parser.parse_args(arguments)
    # Its lines would be among ours.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    try:
        check_server(options.to, with_token=options.token_file is not None)
        if options.token_file is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = read_token(options.token_file)
        waiting = sum(sync(store, options.to, have_ended=options.ended) for store in options.stores)
    except SyncError as error:
        sys.exit(f"error: {error}")
    sys.exit(1 if waiting else 0)


def check_server(url: str, *, with_token: bool) -> None:
    """Raise a SyncError for an address that is not a server's, or that would carry a token unencrypted."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SyncError(f"`{url}` is not the address of a server: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise SyncError("other users see the password in an address: leave it out, and name --token-file")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SyncError(f"`{url}` is not the address of a server: write https://HOST")
    if with_token and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise SyncError(f"a token would pass the network unencrypted to {parts.hostname}: write https://")


def read_token(path: Path) -> str:
    """Return the token in a file that only its owner can read; SyncError for another file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SyncError(f"`{path}` cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.getuid():
            raise SyncError(f"`{path}` must be a file of yours that no other user can read: chmod 600 {path}")
        token = file.read(_TOKEN_BYTES + 1).strip()
    if not token or len(token) > _TOKEN_BYTES or not token.isascii():
        raise SyncError(f"`{path}` must have one token, of at most {_TOKEN_BYTES} ASCII characters")
    return token.decode("ascii")


def sync(store: str, server: str, *, have_ended: bool) -> int:
    """Copy the finished runs of a store to a server; return how many runs wait for their end.

    With `have_ended`, a run without an end is copied as killed, at the time of its last metric.
    """
    # MLflow takes most of a second to import.
    from mlflow import MlflowClient  # noqa: PLC0415
    from mlflow.exceptions import MlflowException  # noqa: PLC0415
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    path = store.removeprefix("sqlite:///")
    if path == store or not Path(path).is_file():
        # MLflow would make an empty one.
        raise SyncError(f"`{store}` is not a store: write sqlite:///PATH of a file that exists")
    try:
        source, target = MlflowClient(tracking_uri=store), MlflowClient(tracking_uri=server)
        return _copy_all(source, target, have_ended=have_ended)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SyncError(f"`{store}` was not copied to {server}: {reason}: run it again to go on") from error


def _copy_all(source: object, target: object, *, have_ended: bool) -> int:
    waiting = 0
    for experiment in source.search_experiments():  # type: ignore[attr-defined]
        for run in _all_runs(source, experiment.experiment_id):
            if run.info.status not in _FINISHED and not have_ended:
                waiting += 1
                print(f"{run.info.run_id} waits: {run.info.status}")
                continue
            print(f"{run.info.run_id} {_copy(run, experiment.name, source, target)}", flush=True)
    return waiting


def _all_runs(client: object, experiment: str, text: str = "") -> list:
    runs, token = [], None
    while True:
        page = client.search_runs([experiment], text, max_results=1000, page_token=token)  # type: ignore[attr-defined]
        runs += page
        token = page.token
        if not token:
            return runs


def _copy(run: object, experiment: str, source: object, target: object) -> str:
    """Copy a run with all that it has, and mark it copied at last; return what was done."""
    from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

    found = target.get_experiment_by_name(experiment)
    there = found.experiment_id if found else target.create_experiment(experiment)
    origin = run.info.run_id
    copies = _all_runs(target, there, f"tags.`{ORIGIN}` = '{origin}'")
    if any(COPIED in copy.data.tags for copy in copies):
        return "was there"
    name = run.info.run_name
    copy = copies[0] if copies else target.create_run(there, run.info.start_time, {ORIGIN: origin}, name)
    identity = copy.info.run_id
    params = [Param(key, value) for key, value in run.data.params.items()]
    tags = [RunTag(key, value) for key, value in run.data.tags.items()]
    metrics = [
        Metric(metric.key, metric.value, metric.timestamp, metric.step)
        for key in run.data.metrics
        for metric in source.get_metric_history(origin, key)
    ]
    # The server keeps equal ones once.
    for start in range(0, len(metrics), _METRICS):
        target.log_batch(identity, metrics=metrics[start : start + _METRICS])
    for start in range(0, max(len(params), len(tags)), _PARAMS):
        part = slice(start, start + _PARAMS)
        target.log_batch(identity, params=params[part], tags=tags[part])
    if source.list_artifacts(origin):
        with tempfile.TemporaryDirectory() as directory:
            target.log_artifacts(identity, source.download_artifacts(origin, "", directory))
    status, end = run.info.status, run.info.end_time
    if status not in _FINISHED:
        status, end = "KILLED", max([run.info.start_time, *(metric.timestamp for metric in metrics)])
    target.set_terminated(identity, status, end)
    target.set_tag(identity, COPIED, "whole")
    return "completed" if copies else "copied"


if __name__ == "__main__":
    main(sys.argv[1:])
