"""Which GPU a rank takes, and what NCCL's log says; nothing here needs a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from envbuild.jobs import envbuild_gpus

# Of NCCL 2.28.9 on an NVIDIA H200 (the first two lines), and as its source prints the others.
LOG = """\
vm:737:737 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>
vm:737:737 [0] NCCL INFO Using network Socket
vm:737:800 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
vm:737:800 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct
vm:737:800 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0
"""


def test_the_log_of_nccl_names_network_and_transports() -> None:
    assert envbuild_gpus.nccl_log(LOG) == {"network": "Socket", "transports": ["NET/Socket", "P2P", "SHM"]}
    libfabric = "NCCL INFO Using network AWS Libfabric\nx [receive] via NET/AWS Libfabric/3/GDRDMA\n"
    assert envbuild_gpus.nccl_log(libfabric) == {
        "network": "AWS Libfabric",
        "transports": ["NET/AWS Libfabric"],
    }
    assert envbuild_gpus.nccl_log("") == {"network": "", "transports": []}


@pytest.mark.parametrize(
    ("variables", "visible", "index"),
    [
        ({}, 4, 0),
        ({"MPI_LOCALRANKID": "2"}, 4, 2),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "3"}, 4, 3),
        ({"LOCAL_RANK": "1"}, 2, 1),
        # A scheduler that binds GPUs shows each rank its own alone.
        ({"SLURM_LOCALID": "3"}, 1, 0),
    ],
)
def test_ranks_of_a_host_take_a_gpu_each(
    variables: dict[str, str], visible: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert envbuild_gpus.own_gpu(visible) == index


def test_a_rank_without_a_gpu_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI_LOCALRANKID", "2")
    with pytest.raises(RuntimeError, match="local rank 2 sees 2 GPUs"):
        envbuild_gpus.own_gpu(2)


def test_a_machine_without_a_driver_answers_so() -> None:
    program = f"{envbuild_gpus.__file__}"
    done = subprocess.run(
        [sys.executable, "-I", program, "kernel"], capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    assert set(answer) == {"vendor", "gpus", "error", "hidden"}
