"""Which commands start ranks themselves, and where that is right: for `launch`, and in shell for modules."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable

import pytest

from envbuild.image.command_launchers import launcher_of, shell_text

Lets = Callable[[str, int, int], bool]

MEETING = "--rdzv-backend=c10d --rdzv-endpoint=n1:29500"
# Commands that no several ranks may start.
NEVER = [
    "torchrun train.py",
    "torchrun --nproc-per-node=1 train.py",
    "torchrun --standalone --nnodes=1 --nproc-per-node 4 train.py",
    f"torchrun --nnodes=1 {MEETING} train.py",
    f"torchrun --nnodes 1:1 {MEETING} train.py",
    f"torchrun {MEETING} train.py",
    "torchrun --nnodes=2 train.py",
    # These options are the program's.
    f"torchrun --standalone train.py --nnodes=2 {MEETING}",
    f"torchrun train.py --nnodes=2 {MEETING}",
    "/usr/local/bin/torchrun train.py",
    "python -m torch.distributed.run train.py",
    "python3.11 -u -m torch.distributed.launch train.py",
    "/usr/bin/python3 -X dev -W ignore -m torch.distributed.run train.py",
    "python -um torch.distributed.run train.py",
    "python -s /opt/venv/bin/torchrun train.py",
    "env OMP_NUM_THREADS=4 torchrun train.py",
    "/usr/bin/env -u LD_PRELOAD A=b python -m torch.distributed.run train.py",
    "nohup torchrun train.py",
    "time -p torchrun train.py",
    "numactl --cpunodebind=0 --membind=0 torchrun train.py",
    "numactl -N 0 -m 0 torchrun train.py",
    "nice -n 5 env A=b numactl --all torchrun train.py",
    "timeout 3600 torchrun train.py",
    "taskset -c 0-3 torchrun train.py",
    "accelerate launch train.py",
    "accelerate launch --multi_gpu --num_processes 4 train.py",
    "accelerate test",
    "accelerate-launch train.py",
    "python -m accelerate.commands.launch train.py",
    "deepspeed train.py",
    "deepspeed --num_gpus 4 train.py",
    "deepspeed --hostfile hosts --master_addr n1 train.py",
    "horovodrun -np 4 python train.py",
    "mpiexec -n 4 python train.py",
    "mpirun -np 4 python train.py",
    "/opt/mpi/bin/mpiexec.hydra -n 4 ./solver",
    "srun -n 4 python train.py",
    f"mpiexec --nnodes=2 {MEETING} python train.py",
]
# Commands that may start once on each node.
ON_EACH_NODE = [
    f"torchrun --nnodes=2 --nproc-per-node=4 {MEETING} train.py",
    "torchrun --nnodes 2 --nproc_per_node 4 --rdzv_backend c10d --rdzv_endpoint n1:29500 train.py",
    f"torchrun --nnodes=1:2 {MEETING} -m package.train",
    f"python -m torch.distributed.run --nnodes=2 {MEETING} train.py --standalone",
    "env PET_NNODES=2 PET_RDZV_ENDPOINT=n1:29500 torchrun train.py",
    "accelerate launch --multi_gpu --num_machines 2 --main_process_ip n1 train.py",
    "accelerate launch --num-machines=2 --config_file two.yaml train.py",
    "deepspeed --hostfile hosts --no_ssh --master_addr n1 train.py",
]
# Commands that start no ranks.
OTHERS = [
    "python train.py",
    "python train.py --launcher torchrun",
    "python train.py --strategy deepspeed",
    "python -u train.py torchrun",
    "python -m pytest torchrun",
    "python -m torch.utils.collect_env",
    "python -c 'import torch' torchrun",
    "./solver mpiexec",
    "numactl -N 0 ./solver torchrun",
    "env TOOL=torchrun python train.py",
    "accelerate env",
    "torchrun-lookalike train.py",
    "python /work/distributed/run.py",
    # Not seen: documented.
    "bash -c 'torchrun train.py'",
    "sh train.sh",
]


def python_lets(command: str, ranks: int, nodes: int) -> bool:
    launcher = launcher_of(shlex.split(command), {})
    return launcher is None or launcher.may_start_on(ranks, nodes)


def shell_lets(command: str, ranks: int, nodes: int) -> bool:
    script = f'set -fu\n{shell_text()}\n_eb_check_command {ranks} {nodes} "$@"\n'
    words = ["dash", "-c", script, "sh", *shlex.split(command)]
    done = subprocess.run(words, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1)
    assert ("starts ranks itself" in done.stderr) == (done.returncode == 1)
    return done.returncode == 0


@pytest.mark.parametrize("lets", [python_lets, shell_lets])
@pytest.mark.parametrize("command", NEVER)
def test_a_launcher_is_not_for_several_ranks(command: str, lets: Lets) -> None:
    assert not lets(command, 2, 1)
    assert not lets(command, 2, 2)
    assert not lets(command, 8, 2)
    # One rank is as if the user had started it.
    assert lets(command, 1, 1)


@pytest.mark.parametrize("lets", [python_lets, shell_lets])
@pytest.mark.parametrize("command", ON_EACH_NODE)
def test_one_on_each_node_that_meets_the_others_is_right(command: str, lets: Lets) -> None:
    assert lets(command, 2, 2)
    assert not lets(command, 4, 2)
    assert not lets(command, 2, 1)


@pytest.mark.parametrize("lets", [python_lets, shell_lets])
@pytest.mark.parametrize("command", OTHERS)
def test_other_programs_are_nothing_of_it(command: str, lets: Lets) -> None:
    assert lets(command, 8, 2)


@pytest.mark.parametrize(
    "command",
    [
        "env -S 'A=b torchrun train.py'",
        "env --unset X --chdir /tmp torchrun train.py",
        "ionice -c 2 torchrun train.py",
        "stdbuf -o L torchrun train.py",
        "python -umtorch.distributed.run train.py",
        "python /opt/env/lib/python3.11/site-packages/torch/distributed/run.py train.py",
        "python -X dev -s -m accelerate.commands.accelerate_cli launch train.py",
    ],
)
def test_options_that_launch_knows(command: str) -> None:
    assert not python_lets(command, 2, 2)


def test_pytorch_s_variables_are_its_options() -> None:
    told = {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "n1:29500"}
    launcher = launcher_of(["torchrun", "train.py"], told)
    assert launcher is not None
    assert launcher.may_start_on(2, 2)
    alone = launcher_of(["torchrun", "--standalone", "train.py"], told)
    assert alone is not None
    assert not alone.may_start_on(2, 2)


def test_nodes_of_an_unknown_number_are_those_that_it_is_told_of() -> None:
    launcher = launcher_of(shlex.split(f"torchrun --nnodes=2 {MEETING} train.py"), {})
    assert launcher is not None
    assert launcher.may_start_on(2, None)
    assert not launcher.may_start_on(4, None)


def test_words_that_are_none() -> None:
    for words in (
        [],
        ["env"],
        ["env", "A=b"],
        ["python"],
        ["python", "-m"],
        ["nice", "-n"],
        ["env", "-S", "'"],
    ):
        assert launcher_of(words, {}) is None
    assert launcher_of(["torchrun", "--nnodes"], {}) is not None
