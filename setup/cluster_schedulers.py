"""One image on both schedulers: its job and its test by Slurm on two nodes, and by JobSets in two pods.

The pods are namespaces with the image as their root; they run the words of the texts that `export` writes.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.jobsets import pods_of, unpack_root  # noqa: E402  # the path comes first
from tests.support.pods import run_pods  # noqa: E402
from tests.support.slurm import Cluster  # noqa: E402

NODES, RANKS_PER_NODE = 2, 2
# A relative path: batch scripts start where they are submitted, and pods have that directory as a volume.
SPEC = (
    f"mpi: mpich\nlaunch: {{command: [python3, ranks.py], nodes: {NODES}, ranks_per_node: {RANKS_PER_NODE},"
    " time_min: 5}"
)
SITE = """\
name: both
scheduler: {name: slurm, mpi_types: [pmi2]}
kubernetes:
  run_as_user: 10001
  volumes: [{target: /data, claim: data}]
  working_directory: /data
"""
RANKS = """\
from mpi4py import MPI

world = MPI.COMM_WORLD
hosts = world.gather(MPI.Get_processor_name())
total = world.allreduce(world.rank + 1)
if world.rank == 0:
    nodes = list(dict.fromkeys(hosts))
    print("sum", total, "nodes of the ranks", [nodes.index(host) for host in hosts])
"""
# By Hydra's rules, ranks 0 and 1 are on the first node.
EXPECTED = "sum 10 nodes of the ranks [0, 0, 1, 1]"
IMAGE = "registry.example.org/both@sha256:" + "1" * 64
_LIMIT_S = 120.0


def show(cluster: Cluster, place: Path) -> None:
    """Run the job and the test of `both.sif`, which is in the directory, on both schedulers; compare them."""
    print("\n--- one image by sbatch and by JobSet's commands")
    for name, text in (("site.yaml", SITE), ("ranks.py", RANKS)):
        (place / name).write_text(text)
    (place / "secret").mkdir()
    (place / "secret/secret").write_text(secrets.token_hex(32))

    _export(place, "sbatch", "both.sbatch")
    _run(
        cluster.on_login(["sbatch", "--wait", "--output=both.out", "both.sbatch"], cwd=place), cluster, place
    )
    by_slurm = (place / "both.out").read_text()
    by_pods = _in_pods(place, "both")[0]
    for text in (by_slurm, by_pods):
        print(f"  {text.strip()}")
        if EXPECTED not in text.splitlines():
            sys.exit(f"the job must print: {EXPECTED}")

    test: list[str | Path] = [
        ROOT / ".venv/bin/envbuild",
        "test",
        "both.sif",
        "--site",
        "site.yaml",
        "--report",
        "slurm.json",
    ]
    nodes = ["--nodes", str(NODES), "--ranks-per-node", str(RANKS_PER_NODE)]
    _run(cluster.on_login([*test, *nodes], cwd=place), cluster, place)
    (place / "pods.log").write_text("".join(_in_pods(place, "both-test", "--test")))
    _envbuild(
        place,
        ["test", "both.sif", "--collect", "pods.log", "--ranks", str(NODES * RANKS_PER_NODE)],
        ["--site", "site.yaml", "--report", "pods.json"],
    )
    reports = {name: json.loads((place / f"{name}.json").read_text()) for name in ("slurm", "pods")}
    compare(reports["slurm"], reports["pods"])


def compare(slurm: Mapping[str, Any], pods: Mapping[str, Any]) -> None:
    """Compare the two verdicts, and what the ranks of jobs that ran on both reported."""
    verdicts = [
        (report["passed"], report["nodes"], report["ranks"], report["image"]) for report in (slurm, pods)
    ]
    if verdicts[0] != verdicts[1] or not slurm["passed"]:
        sys.exit(f"the verdicts must be one, and passed: {verdicts}")
    observed = [_of_jobs(report) for report in (slurm, pods)]
    both = observed[0].keys() & observed[1].keys()
    differing = {
        name: [values[name] for values in observed] for name in both if observed[0][name] != observed[1][name]
    }
    if not both or differing:
        sys.exit(f"the ranks must report the same on both: {differing or 'no job ran on both'}")
    print(f"one verdict: passed; {len(both)} checks of jobs ran on both, with equal values")


def _of_jobs(report: Mapping[str, Any]) -> dict[str, str]:
    """Return what was observed by the checks of jobs that ran."""
    jobs = {check["id"]: check for check in report["findings"] if "/" in check["id"]}
    return {name: check["observed"] for name, check in jobs.items() if check["status"] != "SKIP"}


def _in_pods(place: Path, name: str, *options: str) -> Sequence[str]:
    """Run the pods of a JobSet of the image; return their logs."""
    _export(place, "jobset", f"{name}.job.yaml", "--image", IMAGE, "--name", name, *options)
    root = place / "root"
    if not root.exists():
        unpack_root(place / "both.sif", root)
    job = yaml.safe_load((place / f"{name}.job.yaml").read_text())
    given = {"secrets": {f"{name}-pods": place / "secret"}, "claims": {"data": place}}
    outcomes = run_pods(pods_of(job, place / "both.sif", root, **given), limit_s=_LIMIT_S)
    if any(outcomes.codes):
        sys.exit(f"all pods must end with 0: {outcomes}")
    return outcomes.logs


def _export(place: Path, form: str, output: str, *options: str) -> None:
    _envbuild(place, ["export", "both.sif", "--format", form, "--site", "site.yaml", "-o", output], options)


def _envbuild(place: Path, words: Sequence[str], options: Sequence[str]) -> None:
    """Run envbuild on this machine."""
    print("$ envbuild", *words, *options, flush=True)
    subprocess.run([ROOT / ".venv/bin/envbuild", *words, *options], cwd=place, check=True)


def _run(line: Sequence[str], cluster: Cluster, place: Path) -> None:
    """Run a command on the login node."""
    print("$", *line[line.index("env") + 2 :], flush=True)
    subprocess.run(line, cwd=place, env={**os.environ, **cluster.environment}, check=True)
