"""`envbuild test --nodes` and `envbuild vet` on a real cluster; `make cluster` shows more of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.integration.conftest import Desk
from tests.support.images import read_manifest

Images = Callable[[str], Path]


def test_a_job_of_its_own_gives_a_verdict_that_counts_here(login: Desk, image_on: Images) -> None:
    image = image_on("mpich")
    done = login.envbuild("test", image, "--nodes", "2", "--json", "--report", "nodes.json")
    report = json.loads(done.stdout)
    assert (report["passed"], report["nodes"], report["ranks"]) == (True, 2, 4)
    # This Slurm binds no rank to CPUs, and the image does not say how many threads it starts.
    expected = {"nodes.hosts": "PASS", "nodes.cpus": "SKIP", "nodes.network": "PASS"}
    statuses = {check["id"]: check["status"] for check in report["findings"]}
    assert {name: statuses[name] for name in statuses if name.startswith("nodes.")} == expected
    assert json.loads((login.place / "nodes.json").read_text())["when"] == report["when"]
    status = json.loads(login.envbuild("status", image, "--json").stdout)
    assert (status["state"], status["when"]) == ("passed", report["when"])
    assert not list(login.place.glob("envbuild-test-*"))
    queue = ["squeue", "--states=all", "--noheader", "--name=envbuild", "--format=%k"]
    manifest = read_manifest(image)
    comment = f"envbuild:{manifest.name}/{manifest.version}@{manifest.digest}"
    assert comment in login.run(queue).stdout.splitlines()
    root = login.place / "modules-of-nodes"
    login.envbuild("module", "install", image, "--root", root, "--require-pass")
    (module,) = json.loads(login.envbuild("module", "ls", "--root", root, "--json").stdout)
    assert module["verdict"]["state"] == "passed"
    login.envbuild("status", "--all", root)


def test_nodes_are_measured(login: Desk, image_on: Images) -> None:
    # Other work on this machine may slow a node: which one is bad is shown by `make cluster`.
    done = login.envbuild("vet", image_on("mpich"), "--nodes", "2", "--json", code=None)
    vetting = json.loads(done.stdout)
    assert [node["name"] for node in vetting["nodes"]] == ["n1", "n2"]
    for node in vetting["nodes"]:
        assert (
            min(node["values"][name] for name in ("memory_gbs", "gemm_gflops", "bandwidth_gbs", "read_mbs"))
            > 0
        )
        assert abs(node["values"]["skew_s"]) < 0.1
    assert sorted(vetting["good"] + vetting["bad"]) == ["n1", "n2"]


def test_a_job_that_cannot_be_is_refused(login: Desk, image_on: Images) -> None:
    image = image_on("mpich")
    refused = login.envbuild("test", image, "--nodes", "2", "--partition", "nope", code=2).stderr
    assert "invalid partition specified: nope" in refused
    too_long = ("--partition", "short", "--time", "10")
    never = login.envbuild("test", image, "--nodes", "2", *too_long, code=2).stderr
    assert "cannot start as it is asked for: PartitionTimeLimit" in never
    assert login.run(["squeue", "--noheader"]).stdout == ""
    line: list[str | Path] = ["salloc", "--quiet", "-N1", login.command, "test", image, "--nodes", "2"]
    assert "this job has 1 node, not 2" in login.run(line, code=2).stderr
