"""Facts of nodes as one site file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import RequestError
from envbuild.site.merge import NodeReport, merge, read_report
from envbuild.site.probe import SiteDraft
from envbuild.spec.load import load
from envbuild.spec.site import Site

SLURM = {"name": "slurm", "version": "24.05.1", "mpi_types": ["pmix"]}
A100 = {"vendor": "nvidia", "count": 4, "architectures": ["sm_80"], "driver": "580.65.06"}


def report(queue: str = "", unknown: dict[str, str] | None = None, **facts: Any) -> NodeReport:
    data = {
        "node": f"node-{queue}",
        "queue": queue,
        "site": {"name": "here", **facts},
        "unknown": unknown or {},
    }
    return NodeReport.model_validate_json(json.dumps(data))


def of_file(draft: SiteDraft) -> Site:
    """Return the site that the text of a draft describes."""
    return load(Site, draft.text().encode(), Path("cluster.yaml")).value


def test_compute_nodes_that_differ_are_partitions() -> None:
    login = report(glibc="2.34", scheduler=SLURM)
    cpu = report(
        "cpu", glibc="2.34", memlock="unlimited", scheduler=SLURM, gpus={"vendor": "none", "count": 0}
    )
    debug = cpu.model_copy(update={"queue": "debug"})
    gpu = report("GPU", glibc="2.34", memlock="unlimited", scheduler=SLURM, gpus=A100)
    draft = merge("cluster", login, [cpu, debug, gpu])
    site = of_file(draft)
    assert site == draft.site
    assert (site.name, site.glibc, site.memlock, site.gpus) == ("cluster", "2.34", "unlimited", None)
    assert site.scheduler == login.site.scheduler
    assert {name: part.queues for name, part in site.partitions.items()} == {
        "cpu": ("cpu", "debug"),
        "gpu": ("GPU",),
    }
    assert site.partition("gpu").gpus == gpu.site.gpus
    assert site.partition("cpu").gpus == cpu.site.gpus


def test_where_login_and_compute_nodes_differ_the_facts_are_the_compute_nodes() -> None:
    login = report(glibc="2.28", kernel="5.3.18", shm=1, fuse=True, modules="lmod")
    draft = merge("cluster", login, [report("all", glibc="2.34", kernel="5.3.18", shm=2)])
    site = of_file(draft)
    assert (site.glibc, site.shm, site.partitions) == ("2.34", 2, {})
    # A fact of one node is none of another; the cluster's are shared.
    assert (site.fuse, site.modules) == (None, "lmod")
    text = draft.text()
    assert "# The login node differs: glibc is 2.28.\n" in text
    assert "# The login node differs: fuse is true.\n" in text
    assert "differs: kernel" not in text
    assert "differs: shm" not in text


def test_a_value_that_only_some_nodes_report_is_unknown_elsewhere() -> None:
    cpu = report("cpu", {"kernel": "it cannot be read", "mpi": "none on PATH"}, glibc="2.34")
    gpu = report("gpu", {"mpi": "none on PATH"}, glibc="2.34", kernel="5.14.0")
    draft = merge("cluster", report(), [cpu, gpu])
    site = of_file(draft)
    assert site.partition("cpu").kernel is None
    assert site.partition("gpu").kernel == "5.14.0"
    assert draft.unknown == {"mpi": "none on PATH"}
    assert "# cpu: kernel: unknown: it cannot be read\n" in draft.text()


def test_the_login_nodes_scheduler_brings_what_is_unknown_of_it() -> None:
    login = report("", {"scheduler.pmix": "no task", "memlock": "no job"}, scheduler=SLURM)
    draft = merge("cluster", login, [report("all", {"scheduler": "no srun on PATH"})])
    assert of_file(draft).scheduler == login.site.scheduler
    assert draft.unknown == {"scheduler.pmix": "no task"}


def test_partitions_that_reported_nothing_are_named() -> None:
    draft = merge("cluster", report(), [report("all")], failures={"gpu": "no node answered within 3600 s"})
    assert "# Not described: `gpu`: no node answered within 3600 s.\n" in draft.text()


def test_names_of_queues_that_site_files_do_not_take() -> None:
    nodes = [report(queue, kernel=f"5.{number}") for number, queue in enumerate(["GPU", "gpu", "_", "_a+b_"])]
    partitions = of_file(merge("cluster", report(), nodes)).partitions
    assert {name: part.queues[0] for name, part in partitions.items()} == {
        "gpu": "GPU",
        "gpu-2": "gpu",
        "nodes": "_",
        "a-b": "_a+b_",
    }


def test_a_report_is_read_behind_other_output() -> None:
    sent = report("gpu", {"mpi": "none"}, glibc="2.34")
    text = json.dumps(sent.to_data(), indent=2)
    assert read_report(f"Welcome to node {{7}}\n{text}\nbye\n") == sent


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it wrote no report"),
        ("{", "its report is not JSON"),
        ('{"a": ' + "[" * 100_000, "its report is not JSON"),
        ('{"node": "n1"}', "its report is not valid: queue: Field required"),
        (
            '{"node": "n1", "queue": "", "site": {"name": "x", "glibc": "new"}}',
            "its report is not valid: site.glibc: `new` is not a glibc version",
        ),
    ],
)
def test_a_report_that_is_wrong(text: str, problem: str) -> None:
    reported = read_report(text)
    assert isinstance(reported, str)
    assert reported.startswith(problem)


def test_reports_that_are_no_site_together() -> None:
    with pytest.raises(RequestError, match=r"do not form one site: partitions\.a-2\.queues: `a` is a queue"):
        merge("cluster", report(), [report("a", glibc="2.34"), report("a", glibc="2.36")])
