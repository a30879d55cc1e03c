"""Measure on a private cluster of Slurm: scaling, recorded ranks, and the cost of recording.

    make measure
    make measure ARGS="--only scaling --repeats 3"

The cluster's nodes are namespaces on this machine, which share its cores: the values show that the commands
work together, not how fast a cluster is. Pages and documents are left in build/measure; the values of scaling
are added to benchmarks/results, from which benchmarks/page.py writes docs/reference/benchmarks.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from cluster import Desk  # noqa: E402  # the path comes first

from benchmarks import observe  # noqa: E402
from benchmarks.results import record  # noqa: E402
from tests.support.slurm import Cluster, slurm_cluster  # noqa: E402
from tests.support.users import as_root  # noqa: E402

PARTS = ("scaling", "observed", "killed", "recorder")
OUTPUT = ROOT / "build/measure"
SPEC = 'name: lm\nversion: "1"\nmpi: mpich\nframeworks: [pytorch]\n'
SITE = "name: private\nscheduler: {name: slurm, mpi_types: [pmi2]}\n"
# Rank 0 works, the others wait most of the time.
UNEVEN = """\
import os, time
rank = int(os.environ["PMI_RANK"])
end = time.monotonic() + 12
while time.monotonic() < end:
    sum(range(10_000)) if rank == 0 else time.sleep(0.05)
"""
_STARTS_WITHIN_S = 120.0
LAUNCH = ("launch", "lm.sif", "--site", "site.yaml", "-n", "4")


def show_scaling(desk: Desk, repeats: int) -> None:
    """Measure the language model on 1, 2 and 4 ranks of one and two nodes, and a model of message times."""
    print("\n--- scaling, and a model of message times with the size that it was not fitted to")
    points = ["--nodes", "1,2", "--ranks", "1,2,4", "--repeats", str(repeats), "--results", "results"]
    only = ["--only", "pytorch.lstm", "--only", "mpi.allreduce", "--report", "bench.html"]
    desk.run(["bench", "lm.sif", *only, *points], code=0, says="left out of the fit")
    (result,) = desk.place.glob("results/*.json")
    record_scaling(json.loads(result.read_text()))


def record_scaling(result: dict[str, Any]) -> None:
    """Add the language model's points and the models of message times to the results of benchmarks."""
    shown = (
        "name",
        "nodes",
        "ranks",
        "threads",
        "median",
        "low",
        "high",
        "efficiency",
        "network",
        "oversubscribed",
    )
    for point in result["points"]:
        if point["benchmark"] == "pytorch.lstm":
            row = {key: point[key] for key in shown} | {"repeats": result["repeats"]}
            record("scaling", f"{point['name']}/{point['nodes']}/{point['ranks']}", row)
    for model in result["models"]:
        record("scaling", f"model/{model['nodes']}/{model['ranks']}", model)


def show_observed(desk: Desk) -> None:
    """Record ranks of which one has all the work."""
    print("\n--- recorded ranks, of which one has all the work")
    spread = {"SLURM_NTASKS_PER_NODE": "2"}
    desk.run([*LAUNCH, "--observe", "uneven", "--", "python", "uneven.py"], code=0, env=spread)
    desk.run(["observe", "uneven", "--report", "observed.html"], code=0, says=r"found +ranks\.balance")


def show_killed(desk: Desk, cluster: Cluster) -> None:
    """Cancel a job whose ranks are recorded, and read what it left."""
    print("\n--- a job that is cancelled")
    line: list[str | Path] = [
        ROOT / ".venv/bin/envbuild",
        *LAUNCH,
        "--observe",
        "killed",
        "--",
        "python",
        "uneven.py",
    ]
    job = subprocess.Popen(
        cluster.on_login(line, cwd=desk.place),
        env={**os.environ, **cluster.environment, "SLURM_NTASKS_PER_NODE": "2"},
    )
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while sum(path.read_text().count("\n") > 4 for path in desk.place.glob("killed/rank-*.jsonl")) < 4:
        if time.monotonic() > deadline or job.poll() is not None:
            sys.exit("the ranks were not recorded")
        time.sleep(0.2)
    (number,) = cluster.says("squeue", "--noheader", "--format=%A").split()
    print(f"$ scancel {number}")
    subprocess.run(
        cluster.on_login(["scancel", "--signal=KILL", number], cwd=desk.place, root=True),
        env={**os.environ, **cluster.environment},
        check=True,
    )
    job.wait(timeout=60)
    cluster.await_idle()
    # The records reach up to the end of the ranks.
    desk.run(["observe", "-v", "killed", "--report", "killed.html"], code=0, says=r"(?m)^3 +n2 .* exit$")


def show_recorder(place: Path) -> None:
    """Measure the cost of recording in runs that alternate, on this machine without Slurm."""
    print("\n--- the cost of recording, with the interval of its median")
    os.environ["PATH"] = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    for label, row in observe.measured(place / "lm.sif", runs=6, rounds=6000).items():
        print(f"{label}: {100 * row['median']:.2f} % ({100 * row['low']:.2f} … {100 * row['high']:.2f})")


def main() -> None:
    """Build the image, start the cluster and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each point")
    options = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="envbuild-measure-", dir="/var/tmp"))
    place = top / "work"
    try:
        top.chmod(0o755)
        (top / "slurm").mkdir()
        place.mkdir()
        for name, text in (("lm.yaml", SPEC), ("site.yaml", SITE), ("uneven.py", UNEVEN)):
            (place / name).write_text(text)
        subprocess.run([ROOT / ".venv/bin/envbuild", "build", "-q", "lm.yaml"], cwd=place, check=True)
        with slurm_cluster(top / "slurm") as cluster:
            desk = Desk(cluster, place)
            if "scaling" in options.only:
                show_scaling(desk, options.repeats)
            if "observed" in options.only:
                show_observed(desk)
            if "killed" in options.only:
                show_killed(desk, cluster)
        if "recorder" in options.only:
            show_recorder(place)
        OUTPUT.mkdir(parents=True, exist_ok=True)
        for path in sorted((*place.glob("*.html"), *place.glob("results/*.json"))):
            shutil.copy(path, OUTPUT)
            print(f"{OUTPUT.relative_to(ROOT)}/{path.name}")
    finally:
        # Slurm's own files belong to other ids of its user namespace.
        subprocess.run(as_root(["rm", "-rf", top]), check=True)


if __name__ == "__main__":
    main()
