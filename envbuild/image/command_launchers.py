"""Launchers in a user's command: programs that start ranks themselves, as `torchrun` and `mpiexec` do.

On each of several ranks of a node it starts another job, without the others: rank 0 of 1, with exit code 0.
One on each node is right if it meets the others (`--nnodes` and a rendezvous). A launcher within `bash -c` or
a script is not seen. Pure.

``command_launchers.sh`` does the same in modules and batch scripts, with the tables of this module.

Sources: torch/distributed/run.py of PyTorch 2.13.0, whose options are also variables PET_…; the options of
`accelerate launch`; DeepSpeed, "Launching without passwordless SSH"; the options of Hydra's mpiexec and of
Open MPI's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from envbuild.jobs.envbuild_ranks import LOCAL_SIZES, RANKS_OF_MPI

_ACCELERATE = "--num_machines={nodes} --rdzv_backend=c10d --main_process_ip=HOST"
# Launchers that can be started on each node → the words with which they meet there.
_OF_NODES = {
    "torchrun": "--nnodes={nodes} --nproc-per-node=RANKS --rdzv-backend=c10d --rdzv-endpoint=HOST:29500",
    "accelerate": f"launch {_ACCELERATE}",
    "accelerate-launch": _ACCELERATE,
    "deepspeed": "--hostfile=FILE --no_ssh --master_addr=HOST",
}
# Launchers whose options give the number of ranks, and whose ranks run a command.
_OF_RANKS = (
    *("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich", "mpiexec.openmpi"),
    *("mpirun.openmpi", "orterun", "prterun", "horovodrun"),
)
# Others that reach other nodes by themselves.
_OF_ALL = (*_OF_RANKS, "prun", "srun", "jsrun", "aprun")
# Module that `python -m` runs → the launcher that it is.
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate-launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "horovod.runner": "horovodrun",
    "horovod.runner.launch": "horovodrun",
}
# Programs, and modules, that run a module or script of Python as `python` does.
_RUNNERS = ("coverage", "kernprof", "scalene", "viztracer")
_RUNNER_MODULES = (
    *("cProfile", "profile", "trace", "pdb", "mpi4py", "mpi4py.run", "line_profiler", "memory_profiler"),
    *("debugpy", "torch.utils.bottleneck", *_RUNNERS),
)
# Options with `_` for `-`: what they give → their names. `--no_ssh` of DeepSpeed says that each node has one.
_NODES = ("--nnodes", "--num_machines", "--no_ssh")
_MEETING = ("--rdzv_endpoint", "--master_addr", "--main_process_ip", "--config_file")
# Addresses at which no other node meets a launcher.
_LOCAL = re.compile(r"(localhost(\.localdomain)?|127\.[^:]*|0\.0\.0\.0|\[::1?\])?(:.*)?")
# Options without a value.
_FLAGS = (
    *("--standalone", "--no_python", "--run_path", "--no_ssh", "--multi_gpu", "--cpu", "--use_env", "-m"),
    *("--module", "--use_fsdp", "--use_deepspeed", "--use_xpu", "--debug", "--quiet", "-q", "--tpu"),
)
# Program that starts another → the letters of its options with a value, their long names, and the number of
# words before the other program.
_PREFIXES = {
    "env": ("uCSa", "unset,chdir,split-string,argv0", 0),
    "nohup": ("", "", 0),
    "setsid": ("", "", 0),
    "time": ("fo", "format,output", 0),
    "nice": ("n", "adjustment", 0),
    "ionice": ("cnpPu", "class,classdata,pid,pgid,uid", 0),
    "stdbuf": ("ioe", "input,output,error", 0),
    "numactl": (
        "CNmilpPwSLMof",
        "physcpubind,cpunodebind,membind,interleave,preferred,weighted-interleave,preferred-many,shm,file",
        0,
    ),
    "taskset": ("", "", 1),
    "timeout": ("ks", "kill-after,signal", 1),
    "chrt": ("TPD", "sched-runtime,sched-period,sched-deadline", 1),
    "prlimit": ("op", "output,pid", 0),
    "xargs": ("adEILnPs", "arg-file,delimiter,max-args,max-procs,max-chars,process-slot-var", 0),
    "setarch": ("", "", 0),
    # Architectures: commands, and words of `setarch`.
    **dict.fromkeys(("linux64", "linux32", "x86_64", "i386", "i686", "aarch64", "ppc64le"), ("", "", 0)),
    "catchsegv": ("", "", 0),
    # The command of our modules.
    "envbuild-exec": ("", "", 0),
}
# Programs that watch another, with many options → words before their options (count). Without `=`, a word
# behind an option is its value, unless it is a program that this module knows.
_WATCHERS = {
    **dict.fromkeys(("strace", "ltrace", "valgrind", "ncu", "nvprof", "rocprof", "rocprofv3"), 0),
    **dict.fromkeys(("scalasca", "scan", "tau_exec", "likwid-pin", "likwid-perfctr", "compute-sanitizer"), 0),
    **dict.fromkeys(("nsys", "perf", "py-spy"), 1),
}
# Debuggers, which start a program only behind `--args`.
_DEBUGGERS = ("gdb", "cuda-gdb", "rocgdb")
# Options of `mpiexec`: the number of ranks; what can make them several without it; numbers of ranks on a
# node; those with two values; those without a value.
_RANKS = ("-n", "-np", "--n", "--np", "-c", "--num-proc")
_HOSTS = ("-hosts", "--hosts", "-host", "--host", "-H")
_HOST_FILES = ("-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile")
_PER_NODE = ("-ppn", "--ppn", "-perhost", "--perhost", "-N", "-npernode", "--npernode")
_PAIRS = ("-genv", "-env", "-mca", "--mca", "-gmca", "--gmca", "--omca", "--pmixmca", "--prtemca")
_MPI_FLAGS = (
    *("-l", "-v", "-verbose", "--verbose", "-q", "--quiet", "-prepend-rank", "-genvall", "-genvnone"),
    *("-envall", "-envnone", "-print-all-exitcodes", "-nolocal", "--nolocal", "-oversubscribe"),
    *("--oversubscribe", "--allow-run-as-root", "--report-bindings", "--display-map", "--tag-output"),
    *("--display-allocation", "--use-hwthread-cpus", "--novm", "--merge-stderr-to-stdout"),
)
# Variables with a rank, and with the number of ranks, of an outer launcher.
_RANKS_OUTSIDE = tuple(dict.fromkeys(rank for rank, _ in RANKS_OF_MPI))
_SIZES = tuple(dict.fromkeys(size for _, size in RANKS_OF_MPI))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLauncher:
    """A launcher that a command starts."""

    name: str
    """``torchrun``."""
    nodes: str = ""
    """Its option for the number of nodes (``2``, ``1:4``); empty for none."""
    meets: bool = False
    """Whether its options name where launchers on other nodes meet it."""
    words: tuple[str, ...] = ()
    """Its own words: options, and the program that it starts."""

    @property
    def of_nodes(self) -> bool:
        """Whether it can be started on each node."""
        return self.name in _OF_NODES

    def on_nodes(self, nodes: int | None) -> str:
        """Return the words that start it on each node, for people."""
        return f"{self.name} {_OF_NODES[self.name].format(nodes=nodes or 'NODES')}"

    def may_start_on(self, ranks: int, nodes: int | None) -> bool:
        """Whether each of several ranks may start it, on so many nodes; None if the number is unknown."""
        if ranks < 2:
            return True
        node_count = self.nodes.rpartition(":")[2]
        if not self.of_nodes or not self.meets or node_count in ("", "1"):
            return False
        return ranks <= (nodes or (int(node_count) if node_count.isdecimal() else ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneLauncher:
    """A launcher that several ranks would start, each without the others."""

    launcher: CommandLauncher
    command: tuple[str, ...]
    """The command of a rank, which starts it."""
    ranks: int
    nodes: int | None
    """The nodes of the ranks; None if their number is unknown."""


def lone_launcher(
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    ranks: int,
    nodes: int | None,
    unnumbered: int = 1,
    started_outside: bool = False,
) -> LoneLauncher | None:
    """Return the launcher that each of several ranks would start alone; None for a command that is right.

    `ranks` start the command, or its own `mpiexec` starts several: `unnumbered` of them if the command does
    not say how many. If an outer launcher has `started_outside` the ranks, each may start a job of its own by
    `mpiexec`. `variables` are those of the command: PyTorch's launcher takes its options from PET_… as well.
    """
    launcher = _launcher_of(command, variables)
    if launcher is None:
        return None
    starts_job = launcher.name in _OF_RANKS and (ranks < 2 or started_outside)
    if not starts_job and not launcher.may_start_on(ranks, nodes):
        return LoneLauncher(launcher=launcher, command=tuple(command), ranks=ranks, nodes=nodes)
    if not starts_job:
        return None
    is_openmpi = "openmpi" in launcher.name or launcher.name in ("orterun", "prterun")
    parts = list(_parts(launcher.words, max(unnumbered, 1 + is_openmpi)))
    started = sum(count for count, _ in parts) * max(ranks, 1)
    for _, part in parts:
        # Those of an image start all ranks in its container.
        lone = lone_launcher(part, variables, ranks=started, nodes=1, unnumbered=unnumbered)
        if lone is not None:
            return lone
    return None


def ranks_outside(variables: Mapping[str, str]) -> tuple[int, int]:
    """Return how many ranks an outer launcher has started, of which this is one, and on how many nodes.

    1 and 1 without such a launcher. PMIx sets no size, but a rank above 0 is not alone.
    """
    number = {name: int(text) for name, text in variables.items() if re.fullmatch("[0-9]{1,9}", text)}
    ranks = next((number[name] for name in _SIZES if name in number), number.get("PMIX_RANK", 0) + 1)
    local = next((number[name] for name in LOCAL_SIZES if name in number), 0)
    if local:
        return ranks, ranks if local == 1 else 1
    return ranks, number.get("SLURM_STEP_NUM_NODES", 1)


def _launcher_of(words: Sequence[str], variables: Mapping[str, str]) -> CommandLauncher | None:
    """Return the launcher that a command starts, by itself or behind `env`, `numactl` and their like."""
    variables, rest = dict(variables), list(words)
    while rest:
        name = rest.pop(0).rpartition("/")[2]
        if name in _PREFIXES:
            rest = _behind_prefix(name, rest, variables)
        elif name in _WATCHERS:
            rest = _behind_watcher(rest, _WATCHERS[name])
        elif name in _DEBUGGERS:
            rest = next((rest[at + 1 :] for at, word in enumerate(rest) if word in ("--args", "-args")), [])
        elif name in _RUNNERS:
            return _launcher_of_runner(rest, variables)
        elif _is_python(name):
            return _launcher_of_python(rest, variables)
        else:
            return _read_options(name, rest, variables)
    return None


def _is_python(name: str) -> bool:
    return re.fullmatch(r"python([0-9][0-9.]*t?)?", name) is not None


def _is_known(word: str) -> bool:
    """Return whether a word names a program that this module knows."""
    name = word.rpartition("/")[2]
    known = (*_PREFIXES, *_WATCHERS, *_DEBUGGERS, *_RUNNERS, *_OF_NODES, *_OF_ALL)
    return name in known or _is_python(name)


def _has_value(words: Sequence[str]) -> bool:
    """Return whether the first word, an option of an unknown kind, has the second as its value."""
    return "=" not in words[0] and len(words) > 1 and not words[1].startswith("-") and not _is_known(words[1])


def _behind_prefix(name: str, words: Sequence[str], variables: dict[str, str]) -> list[str]:
    """Return the command that `env` or the like starts; the variables that `env` sets are added."""
    letters, names, before = _PREFIXES[name]
    rest, options_end = list(words), False
    while rest:
        word = rest[0]
        if name == "env" and (match := re.match(r"([A-Za-z_][A-Za-z0-9_]*)=", word)):
            variables[match[1]] = rest.pop(0)[match.end() :]
        elif options_end or not word.startswith("-"):
            break
        elif word == "--":
            options_end = True
            rest.pop(0)
        elif word.startswith("--"):
            option, equals, value = rest.pop(0)[2:].partition("=")
            # GNU's programs take the beginning of a name as well.
            if f",{names}".find(f",{option}") < 0:
                continue
            if not equals:
                value = "".join(rest[:1])
                rest = rest[1:]
            if name == "env" and option.startswith("s"):
                rest = [*_split(value), *rest]
        else:
            rest.pop(0)
            at = next((at for at, letter in enumerate(word) if at and letter in letters), 0)
            if not at:
                continue
            value = word[at + 1 :]
            if not value:
                value = "".join(rest[:1])
                rest = rest[1:]
            if name == "env" and word[at] == "S":
                rest = [*_split(value), *rest]
    return rest[before:]


def _split(text: str) -> list[str]:
    """Return the words of a text of `env -S`, without quotes."""
    return re.sub("['\"]", "", text).split()


def _behind_watcher(words: Sequence[str], before: int) -> list[str]:
    """Return the command that a watcher starts."""
    rest = list(words)
    while rest:
        if rest[0] == "--":
            return rest[1:]
        if rest[0].startswith("-"):
            rest = rest[2 if _has_value(rest) else 1 :]
        elif before and not _is_known(rest[0]):
            before -= 1
            rest.pop(0)
        else:
            break
    return rest


def _launcher_of_python(words: Sequence[str], variables: Mapping[str, str]) -> CommandLauncher | None:
    """Return the launcher that Python runs, as a module or as a script."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            return _launcher_of_script(word, rest, variables)
        if word.startswith("--"):
            rest = rest[word == "--check-hash-based-pycs" :]
            continue
        if option := re.search(r"[cmWX]", word):
            text = word[option.end() :] or "".join(rest[:1])
            rest = rest if word[option.end() :] else rest[1:]
            if option[0] == "c":
                return None
            if option[0] == "m":
                return _launcher_of_module(text, rest, variables)
    return None


def _launcher_of_script(
    word: str, words: Sequence[str], variables: Mapping[str, str]
) -> CommandLauncher | None:
    """Return the launcher that a script is: a command's, or the file of a module."""
    names = [name for file, name in _files() if f"/{word}".endswith(f"/{file}")]
    return _read_options("".join(names) or word.rpartition("/")[2], words, variables)


def _files() -> Iterator[tuple[str, str]]:
    """Yield the end of the path of each module that is a launcher, and the launcher."""
    for module, name in _MODULES.items():
        # `deepspeed.py` is a script of the user.
        if "." in module:
            yield f"{module.replace('.', '/')}.py", name


def _launcher_of_module(
    module: str, words: Sequence[str], variables: Mapping[str, str]
) -> CommandLauncher | None:
    if module in _RUNNER_MODULES:
        return _launcher_of_runner(words, variables)
    return _read_options(_MODULES.get(module, ""), words, variables)


def _launcher_of_runner(words: Sequence[str], variables: Mapping[str, str]) -> CommandLauncher | None:
    """Return the launcher that a program such as `coverage run` or `python -m cProfile` runs."""
    rest = list(words[words[:1] == ["run"] :])
    while rest:
        word = rest[0]
        if word in ("-m", "--module"):
            return _launcher_of_module("".join(rest[1:2]), rest[2:], variables)
        if word.startswith("-m"):
            return _launcher_of_module(word[2:], rest[1:], variables)
        if not word.startswith("-"):
            return _launcher_of_script(word, rest[1:], variables)
        program = "".join(rest[1:2]).rpartition("/")[2]
        is_value = (
            program[:1] != "-" and not program.endswith(".py") and program not in (*_OF_NODES, *_OF_ALL)
        )
        rest = rest[2 if is_value and "=" not in word else 1 :]
    return None


def _read_options(name: str, words: Sequence[str], variables: Mapping[str, str]) -> CommandLauncher | None:
    """Return a launcher with what its options say, which end at the program that it starts."""
    if name == "accelerate":
        # Its other verbs start nothing.
        if list(words[:1]) not in (["launch"], ["test"]):
            return None
        words = words[1:]
    if name not in (*_OF_NODES, *_OF_ALL):
        return None
    nodes = variables.get("PET_NNODES", "")
    address = variables.get("PET_RDZV_ENDPOINT") or variables.get("PET_MASTER_ADDR", "")
    standalone = False
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word, equals, value = rest.pop(0).partition("=")
        option = f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word
        is_value = rest and not rest[0].startswith("-") and not rest[0].endswith(".py")
        if not equals and option not in _FLAGS and is_value:
            value = rest.pop(0)
        if option in _NODES:
            nodes = "all" if option == "--no_ssh" else value
        if option in _MEETING:
            address = value
        standalone = standalone or option == "--standalone"
    meets = not standalone and _LOCAL.fullmatch(address) is None
    return CommandLauncher(name=name, nodes=nodes, meets=meets, words=tuple(words))


def _parts(words: Sequence[str], unnumbered: int) -> Iterator[tuple[int, list[str]]]:
    """Yield for each part of the words of `mpiexec`, which `:` separates, its ranks and their command."""
    rest = list(words)
    while rest:
        count, rest = _read_mpi_options(rest, unnumbered)
        end = rest.index(":") if ":" in rest else len(rest)
        yield count, rest[:end]
        rest = rest[end + 1 :]


def _read_mpi_options(words: Sequence[str], unnumbered: int) -> tuple[int, list[str]]:
    """Return the number of ranks that the options before a command give, and the words behind them."""
    rest, number = list(words), ""
    while rest and rest[0].startswith("-"):
        option, equals, value = rest[0].partition("=")
        length = 2 - len(equals)
        if not equals:
            value = "".join(rest[1:2])
        if option in _RANKS:
            number = value
        elif option in _HOSTS:
            unnumbered = 2 if re.search("[,:]", value) else unnumbered
        elif option in _HOST_FILES:
            unnumbered = 2
        elif option in _PER_NODE:
            unnumbered = unnumbered if value in ("0", "1") else 2
        elif option in _PAIRS:
            length = 3
        elif option in _MPI_FLAGS or not _has_value(rest):
            length = 1
        rest = rest[length:]
    return int(number) if re.fullmatch("[0-9]{1,9}", number) else unnumbered, rest


def shell_text() -> str:
    """Return functions of POSIX shell that refuse the same in modules and scripts.

    ``_eb_check_command RANKS NODES COMMAND …`` fails for a `lone_launcher`, with a message;
    ``_eb_check_start COMMAND …`` takes the ranks from `ranks_outside`. ``_eb_unnumbered`` is `unnumbered`.
    """
    lists = {
        "of_nodes": _OF_NODES,
        "of_ranks": _OF_RANKS,
        "of_all": _OF_ALL,
        "modules": [f"{module}={name}" for module, name in _MODULES.items()],
        "files": [f"{file}={name}" for file, name in _files()],
        "runners": _RUNNERS,
        "runner_modules": _RUNNER_MODULES,
        "flags": _FLAGS,
        "prefixes": [
            f"{name}:{letters}:{names}:{before}" for name, (letters, names, before) in _PREFIXES.items()
        ],
        "watchers": [f"{name}:{before}" for name, before in _WATCHERS.items()],
        "debuggers": _DEBUGGERS,
        "mpi_ranks": _RANKS,
        "mpi_hosts": _HOSTS,
        "mpi_files": _HOST_FILES,
        "mpi_per_node": _PER_NODE,
        "mpi_pairs": _PAIRS,
        "mpi_flags": _MPI_FLAGS,
        "outer_ranks": _RANKS_OUTSIDE,
        "outer_sizes": _SIZES,
        "local_sizes": LOCAL_SIZES,
    }
    settings = [f"_eb_c_{name}=' {' '.join(words)} '" for name, words in lists.items()]
    text = resources.files("envbuild.image").joinpath("command_launchers.sh").read_text(encoding="utf-8")
    return "\n".join([*settings, text])
