"""Which commands start ranks themselves, and where that is right: for `launch`, and in shell for modules."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from random import Random
from typing import Protocol

import pytest

from envbuild.image.command_launchers import lone_launcher, ranks_outside, shell_text


class Lets(Protocol):
    def __call__(self, command: str, ranks: int, nodes: int, **variables: str) -> bool: ...


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
    # Launchers on other nodes cannot meet at an address of this one.
    "torchrun --nnodes=2 --rdzv-endpoint=localhost:29500 train.py",
    "torchrun --nnodes=1:2 --rdzv-endpoint localhost train.py",
    "torchrun --nnodes=2 --rdzv_endpoint=127.0.0.1:29500 train.py",
    "torchrun --nnodes=2 --rdzv-endpoint=:29500 train.py",
    "torchrun --nnodes=2 --rdzv-endpoint=[::1]:29500 train.py",
    "torchrun --nnodes=2 --rdzv-endpoint= train.py",
    f"torchrun --nnodes=2 {MEETING} --master-addr 127.0.0.1 train.py",
    "env PET_NNODES=2 PET_RDZV_ENDPOINT=localhost:1 torchrun train.py",
    "accelerate launch --num_machines 2 --main_process_ip 127.0.0.1 train.py",
    "deepspeed --no_ssh --master_addr localhost train.py",
    # Behind programs that start another, whatever the form of their options.
    "env -S 'A=b torchrun train.py'",
    "env -S \"python -m 'torch.distributed.run'\" train.py",
    "env -iS 'torchrun train.py'",
    "env --split-string='torchrun train.py'",
    "env --split-s 'torchrun train.py'",
    "env --unset X --chdir /tmp torchrun train.py",
    "env --chdir=/tmp -u A -- B=c torchrun train.py",
    "env -iu A torchrun train.py",
    "env - torchrun train.py",
    "timeout --signal KILL --kill-after 5 60 torchrun train.py",
    "timeout -sKILL 60 torchrun train.py",
    "timeout --sig KILL 60 torchrun train.py",
    "nice --adjustment 5 torchrun train.py",
    "ionice -c 2 torchrun train.py",
    "stdbuf -o L torchrun train.py",
    "numactl --preferred 0 -C 0-3 torchrun train.py",
    "setarch -R torchrun train.py",
    "setarch x86_64 -R torchrun train.py",
    "linux64 -R torchrun train.py",
    "prlimit --nofile=1024 -n1024 torchrun train.py",
    "xargs torchrun",
    "xargs -n 1 --max-procs 2 torchrun",
    "envbuild-exec torchrun train.py",
    "/sw/bin/envbuild-exec env A=b torchrun train.py",
    # Behind profilers, tracers and debuggers.
    "nsys profile torchrun train.py",
    "nsys profile -o out --trace cuda,nvtx -f true torchrun train.py",
    "nsys profile -f true python -m torch.distributed.run train.py",
    "ncu --set full --nvtx torchrun train.py",
    "strace -f torchrun train.py",
    "strace -f -o out torchrun train.py",
    "perf stat -e cycles torchrun train.py",
    "perf record -g -- torchrun train.py",
    "valgrind --tool=memcheck torchrun train.py",
    "gdb -batch -ex run --args torchrun train.py",
    "scalasca -analyze torchrun train.py",
    "py-spy record -o out -- python -m torch.distributed.run train.py",
    "python -m cProfile -m torch.distributed.run train.py",
    "python -m cProfile -o out -s time -m torch.distributed.run train.py",
    "python -m cProfile -o out /opt/env/bin/torchrun train.py",
    "python -m mpi4py.run -m torch.distributed.run train.py",
    "python -m mpi4py -rc threads=0 -mtorch.distributed.run train.py",
    "python -m coverage run -m torch.distributed.run train.py",
    "coverage run --parallel-mode -m torch.distributed.run train.py",
    "python -mcProfile -mtorch.distributed.run train.py",
    "python -m pdb -c continue -m torch.distributed.run train.py",
    # Every form of Python's own options.
    "python3 -mtorch.distributed.run train.py",
    "python -umtorch.distributed.run train.py",
    "python -Xdev -Wignore -m torch.distributed.run train.py",
    "python --check-hash-based-pycs never -m torch.distributed.run train.py",
    "python /opt/env/lib/python3.11/site-packages/torch/distributed/run.py train.py",
    "python -X dev -s -m accelerate.commands.accelerate_cli launch train.py",
    # These options are the program's: the launcher's end at it.
    f"torchrun -m package.train --nnodes=2 {MEETING}",
    f"torchrun --nproc-per-node 2 program --nnodes=2 {MEETING}",
    "accelerate launch --unknown_flag train.py --num_machines=2 --main_process_ip=n1",
]
# Commands of one process, whose own `mpiexec` starts a launcher on several ranks.
NESTED = [
    "mpiexec -n 2 torchrun train.py",
    "mpiexec -np 2 torchrun train.py",
    "mpiexec --np 2 torchrun train.py",
    "mpiexec -n=2 torchrun train.py",
    "mpiexec -np=2 torchrun train.py",
    "mpiexec --np=2 torchrun train.py",
    "mpirun -n 2 env --chdir /tmp torchrun train.py",
    "mpiexec -n 2 timeout --signal KILL 60 torchrun train.py",
    "mpiexec -n 2 env -S 'torchrun train.py'",
    "mpiexec -n 2 python3 -mtorch.distributed.run train.py",
    "mpiexec -n 2 /sw/bin/envbuild-exec torchrun train.py",
    "mpiexec -n 2 /sw/bin/torchrun train.py",
    f"mpiexec -n 2 torchrun --nnodes=2 {MEETING} train.py",
    "mpiexec -hosts localhost:2 torchrun train.py",
    "mpiexec -host a,b torchrun train.py",
    "mpiexec -ppn 2 -hosts localhost torchrun train.py",
    "mpiexec -f hosts torchrun train.py",
    "mpiexec -np 1 torchrun a.py : -np 1 torchrun b.py",
    "mpiexec -np 1 ./solver : -np 1 torchrun b.py",
    "mpiexec -n 2 ./solver : torchrun b.py",
    "mpiexec -genv A b -n 2 -wdir /tmp -l torchrun train.py",
    "mpiexec --mca btl self --oversubscribe --bind-to none -n 2 torchrun train.py",
    "mpiexec --mystery torchrun : -n 1 torchrun train.py",
    "mpiexec.openmpi torchrun train.py",
    "orterun torchrun train.py",
    "horovodrun -np 2 torchrun train.py",
    "horovodrun --num-proc 2 -H localhost:2 torchrun train.py",
    "mpiexec -n 1 mpiexec -n 2 torchrun train.py",
    "numactl -N 0 mpiexec -n 2 torchrun train.py",
    "python -m horovod.runner -np 2 torchrun train.py",
]
# Commands of one process that are right.
NOT_NESTED = [
    "mpiexec -n 1 torchrun train.py",
    "mpiexec -n=1 torchrun train.py",
    "mpiexec torchrun train.py",
    "mpiexec -hosts localhost torchrun train.py",
    "mpiexec -ppn 1 torchrun train.py",
    "mpiexec -n 2 python train.py torchrun",
    "mpiexec -n 2 solver torchrun",
    "mpiexec -n 2 /bin/echo torchrun",
    "mpiexec -n 2 -genv A torchrun ./solver",
    "mpiexec -n 2 -wdir torchrun-dir ./solver",
    "mpiexec -n 1 ./solver : -n 1 ./other torchrun",
    "mpiexec -n",
    "mpiexec :",
    "mpiexec -genv",
    "torchrun --nproc-per-node=4 train.py",
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
    "python deepspeed.py",
    "python -m cProfile -o out train.py torchrun",
    "python -m coverage run train.py torchrun",
    "python -m cProfile",
    "gdb torchrun",
    "gdb --args ./solver torchrun",
    "strace ./solver torchrun",
    "nsys stats report",
    "timeout -s KILL 60 ./solver torchrun",
    "env --chdir /tmp ./solver torchrun",
    "env -S './solver torchrun'",
    "taskset -c 0-1 ./solver torchrun",
    "env --unset torchrun ./solver",
    # Not seen: documented.
    "bash -c 'torchrun train.py'",
    "sh train.sh",
]


def python_lets(command: str, ranks: int, nodes: int, **variables: str) -> bool:
    return lone_launcher(shlex.split(command), variables, ranks=ranks, nodes=nodes) is None


def shell_lets(command: str, ranks: int, nodes: int, **variables: str) -> bool:
    return _refuses_not(f'_eb_check_command {ranks} {nodes} "$@"', command, variables)


def _refuses_not(check: str, command: str, variables: Mapping[str, str]) -> bool:
    words = ["dash", "-c", f"set -fu\n{shell_text()}\n{check}\n", "sh", *shlex.split(command)]
    env = {"PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert ("starts ranks itself" in done.stderr) == (done.returncode == 1)
    assert done.returncode or not done.stderr
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


@pytest.mark.parametrize("lets", [python_lets, shell_lets])
@pytest.mark.parametrize("command", NESTED)
def test_an_mpiexec_of_the_command_starts_no_launcher_on_several_ranks(command: str, lets: Lets) -> None:
    assert not lets(command, 1, 1)


@pytest.mark.parametrize("lets", [python_lets, shell_lets])
@pytest.mark.parametrize("command", NOT_NESTED)
def test_an_mpiexec_of_the_command_starts_other_programs(command: str, lets: Lets) -> None:
    assert lets(command, 1, 1)


def test_the_ranks_of_a_launcher_in_the_command_are_its_own() -> None:
    words = shlex.split(
        "mpiexec -n 1 ./solver : -n 3 env A=b torchrun --nproc-per-node 2 b.py : -n 1 ./other"
    )
    lone = lone_launcher(words, {}, ranks=1, nodes=1)
    assert lone is not None
    assert (lone.launcher.name, lone.ranks, lone.nodes) == ("torchrun", 5, 1)
    assert " ".join(lone.command) == "env A=b torchrun --nproc-per-node 2 b.py"


@pytest.mark.parametrize("lets", [python_lets, shell_lets])
def test_pytorch_s_variables_are_its_options(lets: Lets) -> None:
    variables = {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "n1:29500"}
    assert lets("torchrun train.py", 2, 2, **variables)
    assert not lets("torchrun --standalone train.py", 2, 2, **variables)
    assert not lets("torchrun --rdzv-endpoint=localhost train.py", 2, 2, **variables)


def test_nodes_of_an_unknown_number_are_those_that_it_is_told_of() -> None:
    words = shlex.split(f"torchrun --nnodes=2 {MEETING} train.py")
    assert lone_launcher(words, {}, ranks=2, nodes=None) is None
    assert lone_launcher(words, {}, ranks=4, nodes=None) is not None


@pytest.mark.parametrize("lets", [python_lets, shell_lets])
@pytest.mark.parametrize(
    "command",
    [
        *(
            "",
            "env",
            "env A=b",
            "env -S",
            "env -u",
            "env -S ' '",
            "python",
            "python -m",
            "python -X",
            "python -",
        ),
        *("nice -n", "timeout 5", "strace -o", "gdb", "coverage", "coverage run", "python -m cProfile -m"),
        *("accelerate", "''", "'a b'", "xargs -n", "nsys"),
    ],
)
def test_words_that_are_none(command: str, lets: Lets) -> None:
    assert lets(command, 2, 2)


@pytest.mark.parametrize("lets", [python_lets, shell_lets])
def test_an_option_without_its_value(lets: Lets) -> None:
    assert not lets("torchrun --nnodes", 2, 2)


@pytest.mark.parametrize(
    ("variables", "ranks", "nodes"),
    [
        ({}, 1, 1),
        ({"SLURM_STEP_NUM_TASKS": "2"}, 2, 1),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}, 4, 2),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, 2, 1),
        ({"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "2"}, 1, 1),
        ({"PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}, 2, 2),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_STEP_NUM_NODES": "2"}, 2, 1),
        ({"MV2_COMM_WORLD_SIZE": "3"}, 3, 1),
        ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_SIZE": "1"}, 2, 2),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}, 2, 1),
        ({"PMIX_RANK": "0"}, 1, 1),
        ({"PMI_SIZE": "many"}, 1, 1),
    ],
)
def test_ranks_of_an_outer_launcher_count(variables: dict[str, str], ranks: int, nodes: int) -> None:
    assert ranks_outside(variables) == (ranks, nodes)
    for command, lets in (
        ("torchrun train.py", ranks == 1),
        (f"torchrun --nnodes=2 {MEETING} train.py", ranks <= nodes),
        ("mpiexec -n 2 torchrun train.py", False),
        ("mpiexec -n 1 torchrun train.py", ranks == 1),
        # Each rank may start a job of its own.
        ("mpiexec -n 2 python train.py", True),
        ("python train.py", True),
    ):
        first = variables | {"SLURM_PROCID": "0", "PMI_RANK": "0"}
        assert _refuses_not('_eb_check_start "$@"', command, first) == lets, command
        words = shlex.split(command)
        lone = lone_launcher(words, variables, ranks=ranks, nodes=nodes, started_outside=True)
        assert (lone is None) == lets, command


WORDS = shlex.split(
    "env nohup nice numactl taskset timeout chrt xargs setarch x86_64 strace nsys profile perf gdb "
    "--args coverage run python python3.11 torchrun accelerate launch deepspeed mpiexec mpirun srun "
    "horovodrun orterun ./solver train.py a.b -n -np -n=2 --np=2 2 1 : -- - -c -m "
    "-mtorch.distributed.run torch.distributed.run -X -W -u -i -S -iS -s --signal KILL --sig --chdir "
    "--chdir=/x A=b PET_NNODES=2 PET_RDZV_ENDPOINT=n1:1 -m cProfile PET_MASTER_ADDR=localhost --nnodes "
    "--nnodes=2 --nnodes=1:2 2:1 --rdzv-endpoint=n1:2 --rdzv-endpoint n1 localhost:1 "
    "--rdzv_endpoint=127.0.0.1 --standalone --no_ssh --master_addr --foo --foo=bar -hosts h:2 h -ppn "
    "-genv --mca -l -o --module 3 envbuild-exec -C 0-3 'torchrun x' 'A=b torchrun' -k5 -sKILL = =x -= "
)


def test_both_parsers_judge_alike() -> None:
    random = Random(1)  # noqa: S311
    ends: tuple[list[str], ...] = (
        [],
        ["torchrun", "train.py"],
        ["torchrun", "--nnodes=2", "--rdzv-endpoint=n1:1", "train.py"],
    )
    commands = [[*random.choices(WORDS, k=random.randint(1, 8)), *random.choice(ends)] for _ in range(2000)]
    for ranks, nodes in ((1, 1), (2, 2), (3, 2)):
        checks = [
            f"_eb_check_command {ranks} {nodes} {shlex.join(command)} 2>/dev/null && echo right || echo alone"
            for command in commands
        ]
        script = "\n".join(["set -fu", shell_text(), *checks])
        done = subprocess.run(["dash"], input=script, capture_output=True, text=True, check=True)
        by_python = [
            "right" if lone_launcher(command, {}, ranks=ranks, nodes=nodes) is None else "alone"
            for command in commands
        ]
        different = [
            shlex.join(command)
            for command, shell, python in zip(commands, done.stdout.split(), by_python, strict=True)
            if shell != python
        ]
        assert different == []
        assert "alone" in by_python
