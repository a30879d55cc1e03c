"""The cluster itself: two nodes, and nothing left of it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.support.slurm import Cluster, running, slurm_cluster
from tests.support.users import shared_directory

MARK = "604802.5"


def test_two_nodes_with_a_tmp_each(cluster: Cluster) -> None:
    said = cluster.says("srun", "-N2", "sh", "-c", "hostname; hostname >/tmp/me; sleep 1; cat /tmp/me")
    assert sorted(said.split()) == ["n1", "n1", "n2", "n2"]
    assert not Path("/tmp/me").exists()


def test_a_second_cluster_is_in_nobody_s_way_and_leaves_nothing(cluster: Cluster) -> None:
    with shared_directory() as directory, slurm_cluster(directory) as other:
        line = other.on_login(["srun", "-N2", "sleep", MARK], cwd=directory)
        job = subprocess.Popen(line, env={"PATH": "/usr/bin", **other.environment})
        while running().count(f"sleep {MARK}") < 4:  # enter, srun and two tasks
            assert job.poll() is None
            time.sleep(0.1)
    job.wait(timeout=10)
    # Not even of what still ran; and the first one goes on.
    assert MARK not in running()
    assert str(directory) not in running()
    cluster.await_idle()
