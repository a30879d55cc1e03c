"""Show envbuild on a private cluster of Slurm: certificates, controls, twenty builds, a slow node.

    make cluster
    make cluster ARGS="--only vet"
    make cluster ARGS="--only many"
    make cluster ARGS="--only certificates --spec examples/horovod.yaml examples/keras.yaml"

The cluster's nodes are namespaces on this machine, which end with this program. Every step prints its
command and what came of it; a step with another outcome ends this program.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import cluster_many  # noqa: E402  # the path comes first
import cluster_schedulers  # noqa: E402

from tests.support.slurm import Cluster, slurm_cluster  # noqa: E402  # the path comes first
from tests.support.users import as_root  # noqa: E402

PARTS = ("certificates", "controls", "many", "vet")
# Image → its spec, beside name and version.
SPECS = {
    "mpich": "mpi: mpich",
    "openmpi": "mpi: openmpi",
    "pytorch": "mpi: mpich\nframeworks: [pytorch]",
    "threads": 'mpi: mpich\nenvironment: {OMP_NUM_THREADS: "8"}',
    "tcp": 'mpi: mpich\nenvironment: {MPIR_CVAR_NOLOCAL: "1"}',
    "killed": "mpi: mpich\nframeworks: [killed]",
    "hanging": "mpi: mpich\nframeworks: [hanging]",
    "both": cluster_schedulers.SPEC,
}
JOBS = {
    "killed": "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)",
    "hanging": "if rank == 1:\n    time.sleep(3600)",
}
RECIPE = """\
name: {name}
kind: framework
summary: A job with a rank that is {name}
homepage: https://example.org
versions: ["1"]
variants: {{any: {{requirements: []}}}}
owns: []
needs_mpi: true
"""
JOB = """\
# /// job
# id: {name}.sum
# title: a sum over the ranks
# timeout_s: 20
# expect: {{sum: n}}
# ///
import os
import signal
import time

import envbuild_job
from mpi4py import MPI

rank = MPI.COMM_WORLD.rank
{fault}
envbuild_job.report(rank=rank, size=MPI.COMM_WORLD.size, sum=MPI.COMM_WORLD.allreduce(1))
"""
SITES = {
    "shm.yaml": "name: shm\nfabric: {name: memory, provider: shm}\n",
    "no-pmi.yaml": "name: no-pmi\nscheduler: {name: slurm, mpi_types: [cray_shasta]}\n",
}
# Images of each part.
IMAGES = {
    "certificates": ("mpich", "openmpi", "pytorch"),
    "controls": ("mpich", "threads", "tcp", "killed", "hanging"),
    "many": ("both",),
    "vet": ("mpich",),
}
# On this node the ranks of a measurement stand still most of the time. Unlike a node beside busy
# processes it is slow however busy this machine is.
SLOW = """\
import os, select, signal, sys, time
from pathlib import Path

def ranks():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = os.readlink(process / "ns/uts") == os.readlink("/proc/self/ns/uts")
            if here and b"node_check.py" in (process / "cmdline").read_bytes():
                yield int(process.name)
        except OSError:
            continue

def tell(what, pids):
    for pid in pids:
        try:
            os.kill(pid, what)
        except OSError:
            continue

print("slow", flush=True)
ended, stopped = [], []
while not ended:
    began = time.monotonic()
    ended, _, _ = select.select([sys.stdin], [], [], 0.02)
    # This program waits for the CPU, too: they stand still 15 times as long as they ran.
    ran_s = time.monotonic() - began
    tell(signal.SIGSTOP, stopped)
    found = list(ranks())
    time.sleep(15 * ran_s)
    tell(signal.SIGCONT, stopped)
    stopped = found
"""


@dataclass(frozen=True)
class Desk:
    """A user's directory on the login node."""

    cluster: Cluster
    place: Path

    def run(
        self, words: Sequence[str], *, code: int, says: str = "", env: dict[str, str] | None = None
    ) -> None:
        """Run envbuild, show the lines that matter, and compare exit code and text."""
        variables = {**(env or {}), **self.cluster.environment}
        print("\n$", " ".join([*(f"{name}=…" for name in env or {}), "envbuild", *words]))
        line = self.cluster.on_login([ROOT / ".venv/bin/envbuild", *words], cwd=self.place)
        done = subprocess.run(
            line,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(textwrap.indent(done.stdout.rstrip(), "  "))
        if done.returncode != code or not re.search(says, done.stdout):
            sys.exit(f"this must end with exit code {code} and say `{says}`; it ended with {done.returncode}")


def write(place: Path) -> None:
    """Write specs, recipes and sites."""
    for name, body in SPECS.items():
        (place / f"{name}.yaml").write_text(f'name: {name}\nversion: "1"\n{body}\n')
    for name, fault in JOBS.items():
        recipe = place / "recipes" / name
        (recipe / "verify").mkdir(parents=True)
        (recipe / "recipe.yaml").write_text(RECIPE.format(name=name))
        (recipe / "verify/job.py").write_text(JOB.format(name=name, fault=fault))
    for name, text in SITES.items():
        (place / name).write_text(text)
    (place / "slow.py").write_text(SLOW)
    # Slurm places the ranks on the hosts of this file.
    (place / "hosts").write_text("n1\nn1\n")


def build(place: Path, names: Sequence[str]) -> None:
    """Build the images on this machine: the cluster has no way out."""
    for name in names:
        words = ["build", "-q", f"{name}.yaml", "--recipes", "recipes"]
        print("$ envbuild", " ".join(words), flush=True)
        subprocess.run([ROOT / ".venv/bin/envbuild", *words], cwd=place, check=True)


def show_certificates(cluster: Cluster, place: Path, others: Sequence[str]) -> None:
    """Test images across two nodes, of which the status then tells."""
    desk = Desk(cluster, place)
    print("\n--- certificates on two nodes")
    desk.run(["test", "mpich.sif", "--nodes", "2", "--vet"], code=0, says=r"certificate: passed: .*pmi2")
    desk.run(["test", "openmpi.sif", "--nodes", "2"], code=0, says=r"certificate: passed: .*pmix")
    for name in ("pytorch", *others):
        desk.run(["test", f"{name}.sif", "--nodes", "2"], code=0, says=r"certificate: passed: .*on 2 nodes")
    desk.run(["status", "mpich.sif", "openmpi.sif"], code=0, says="PASS .*2 nodes")

    print("\n--- another Slurm makes a verdict stale")
    newer = place / "newer"
    newer.mkdir()
    fake = newer / "srun"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo slurm 99.05 && exit\nexec /usr/bin/srun "$@"\n')
    fake.chmod(0o755)
    path = f"{newer}:{os.environ['PATH']}"
    desk.run(["status", "mpich.sif"], code=4, says="STALE .*slurm: .* there, slurm 99.05", env={"PATH": path})


def show_controls(cluster: Cluster, place: Path) -> None:
    """Run what must fail, each for its reason."""
    desk = Desk(cluster, place)
    print("\n--- controls: each must be found")
    no_pmi = ["test", "mpich.sif", "--nodes", "2", "--site", "no-pmi.yaml"]
    desk.run(no_pmi, code=2, says="PMI.intersection")
    one_node = ["--nodes", "1", "--ranks-per-node", "2", "--site", "shm.yaml"]
    desk.run(["test", "mpich.sif", *one_node], code=0, says="PASS nodes")
    desk.run(["test", "tcp.sif", *one_node], code=4, says="messages took TCP")
    desk.run(
        ["test", "killed.sif", "--nodes", "2", "--ranks-per-node", "1"],
        code=4,
        says="no sound report of rank",
    )
    desk.run(
        ["test", "hanging.sif", "--nodes", "2", "--ranks-per-node", "1"], code=4, says="ended after 20 s"
    )
    placed = {"SLURM_HOSTFILE": str(place / "hosts"), "SLURM_DISTRIBUTION": "arbitrary"}
    desk.run(
        ["test", "mpich.sif", "--nodes", "2", "--ranks", "2"],
        code=4,
        says="placed the ranks on fewer nodes",
        env=placed,
    )
    desk.run(["test", "threads.sif", "--nodes", "2"], code=4, says="of 8 threads on")
    desk.run(["test", "mpich.sif", "--nodes", "2", "--require-gpu"], code=4, says="an image for CPUs")


def show_slow_node(cluster: Cluster, place: Path) -> None:
    """Vet two nodes, of which one is slow, and again when it is not."""
    desk = Desk(cluster, place)
    print("\n--- a slow node")
    slow = subprocess.Popen(
        cluster.on_login(["srun", "--nodelist=n2", "--ntasks=1", "/usr/bin/python3", "slow.py"], cwd=place),
        env={**os.environ, **cluster.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with slow:
        os.read(slow.stdout.fileno(), 1)  # type: ignore[union-attr]  # it runs
        desk.run(["vet", "mpich.sif", "--nodes", "2"], code=4, says=r"ISOLATE n2: gemm(?s:.*)bad: n2")
        slow.terminate()
    cluster.await_idle()
    desk.run(["vet", "mpich.sif", "--nodes", "2"], code=0, says="bad: none")


def main() -> None:
    """Start the cluster and show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument(
        "--spec", nargs="+", type=Path, default=[], help="further images to test across nodes"
    )
    options = parser.parse_args()
    others = [spec.stem for spec in options.spec] if "certificates" in options.only else []
    place = Path(tempfile.mkdtemp(prefix="envbuild-cluster-", dir="/var/tmp"))
    many = Path(tempfile.mkdtemp(prefix="envbuild-many-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        many.chmod(0o755)
        for directory in ("slurm", "pinned", "work"):
            (place / directory).mkdir()
        write(place / "work")
        for spec in options.spec:
            shutil.copy(spec, place / "work")
        build(
            place / "work", [*dict.fromkeys(name for part in options.only for name in IMAGES[part]), *others]
        )
        print("a private cluster of Slurm, with two nodes:", shlex.join(["n1", "n2"]))
        if set(options.only) - {"vet"}:
            with slurm_cluster(place / "slurm") as cluster:
                if "certificates" in options.only:
                    show_certificates(cluster, place / "work", others)
                if "controls" in options.only:
                    show_controls(cluster, place / "work")
                if "many" in options.only:
                    cluster_schedulers.show(cluster, place / "work")
                    cluster_many.show(cluster, many, place / "archive")
        if "vet" in options.only:
            with slurm_cluster(place / "pinned", pinned=True) as cluster:
                show_slow_node(cluster, place / "work")
    finally:
        # Slurm's own files belong to other ids of its user namespace.
        subprocess.run(as_root(["rm", "-rf", place, many]), check=True)
    print("\nall of it was as it must be")


if __name__ == "__main__":
    main()
