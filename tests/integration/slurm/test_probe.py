"""`envbuild site probe` on a machine with a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

from envbuild.spec.load import load
from envbuild.spec.site import Site, SiteGpus
from tests.integration.conftest import Desk
from tests.integration.slurm.conftest import ranks_told
from tests.integration.slurm.test_launch import FOUR, Images


def test_a_login_node_is_described_and_images_start_by_the_draft(login: Desk, image_on: Images) -> None:
    draft = login.place / "probed.yaml"
    login.envbuild("site", "probe", "-o", draft)
    scheduler = load(Site, draft.read_bytes(), draft).value.scheduler
    assert scheduler is not None
    said = login.run(["srun", "--version"]).stdout.split()[1]
    assert (scheduler.name, scheduler.version, scheduler.default_mpi_type) == ("slurm", said, "none")
    assert scheduler.mpi_types == ("cray_shasta", "none", "pmi2", "pmix", "pmix_v4")
    login.envbuild("site", "check", draft)
    line: list[str | Path] = ["launch", image_on("openmpi"), "--site", draft, "-n", "4"]
    done = login.envbuild(*line, "--", "python", "ranks.py", "0", env={"SLURM_NTASKS_PER_NODE": "2"})
    assert ranks_told(done.stdout) == FOUR


def test_the_programs_of_slurm_alone_are_no_scheduler(login: Desk, desk: Desk) -> None:
    # The same machine outside of the cluster.
    draft = desk.place / "outside.yaml"
    desk.envbuild("site", "probe", "-o", draft)
    assert load(Site, draft.read_bytes(), draft).value.scheduler is None
    assert "finds no cluster" in draft.read_text()


def test_a_job_knows_its_partition(login: Desk) -> None:
    text = "name: parts\npartitions:\n  quick: {queues: [short]}\n  all: {binds: [{source: /no/where}]}\n"
    parts = login.write("parts.yaml", text)

    def on(queue: str, *words: str | Path, code: int = 0) -> str:
        line: list[str | Path] = ["srun", "-N1", f"--partition={queue}", login.command, "site", *words]
        return login.run(line, code=code).stdout

    assert json.loads(on("short", "check", parts, "--json"))["site"] == "parts/quick"
    assert on("all", "check", parts, code=4) == "missing     binds: /no/where: it is not there\n"
    draft = on("short", "probe")
    assert (
        "# Drafted on a node of Slurm's partition `short`.\n# Slurm has the partitions all, short." in draft
    )


def test_compute_nodes_are_described_from_a_login_node(login: Desk) -> None:
    draft = login.place / "cluster.yaml"
    said = login.envbuild("site", "probe", "--all-partitions", "-o", draft).stderr
    assert "probe a node of partition short: done" in said
    site = load(Site, draft.read_bytes(), draft).value
    # Only a job has a limit, only a task of srun PMIx's variables, and only of a job is "no GPU" a fact.
    assert site.memlock is not None
    assert site.scheduler is not None
    assert site.scheduler.pmix is not None
    assert site.gpus == SiteGpus(vendor="none", count=0)
    # Both partitions have the same nodes.
    assert site.partitions == {}
    assert "each of the partitions all, short, whose facts are the\n# same." in draft.read_text()
    line: list[str | Path] = ["srun", "-N1", login.command, "site", "check", draft]
    login.run(line)
    refused = login.envbuild("site", "probe", "--partition=short", "--slurm=--constraint=no", code=2).stderr
    assert "partition `short`: Unable to allocate resources: Invalid feature specification" in refused
