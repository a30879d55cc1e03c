"""Launchers in a user's command: programs that start ranks themselves, as `torchrun` and `mpiexec` do.

On each of several ranks of a node it starts another job, without the others: rank 0 of 1, with exit code 0.
One on each node is right if it meets the others (`--nnodes` and a rendezvous). A launcher within `bash -c` or
a script is not seen. Pure.

Sources: torch/distributed/run.py of PyTorch 2.13.0, whose options are also variables PET_…; the options of
`accelerate launch`; DeepSpeed, "Launching without passwordless SSH".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

_ACCELERATE = "--num_machines={nodes} --rdzv_backend=c10d --main_process_ip=HOST"
# Launchers that can be started on each node → the words with which they meet there.
_OF_NODES = {
    "torchrun": "--nnodes={nodes} --nproc-per-node=RANKS --rdzv-backend=c10d --rdzv-endpoint=HOST:29500",
    "accelerate": f"launch {_ACCELERATE}",
    "accelerate-launch": _ACCELERATE,
    "deepspeed": "--hostfile=FILE --no_ssh --master_addr=HOST",
}
# Launchers that reach other nodes by themselves.
_OF_ALL = (
    *("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich", "mpiexec.openmpi"),
    *("mpirun.openmpi", "orterun", "prterun", "prun", "horovodrun", "srun", "jsrun", "aprun"),
)
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
# Options with `_` for `-`: what they give → their names. `--no_ssh` of DeepSpeed says that each node has one.
_NODES = ("--nnodes", "--num_machines", "--no_ssh")
_MEETING = ("--rdzv_endpoint", "--master_addr", "--main_process_ip", "--config_file")
# Options without a value.
_FLAGS = (
    "--standalone",
    "--no_python",
    "--run_path",
    "--no_ssh",
    "--multi_gpu",
    "--cpu",
    "--use_env",
    "-m",
    "--module",
)
# Program that starts another → the letters of its options with a value, and the words before that (count).
_PREFIXES = {
    "env": ("uCS", 0),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "time": ("fo", 0),
    "nice": ("n", 0),
    "ionice": ("cn", 0),
    "stdbuf": ("ioe", 0),
    "numactl": ("CNmilpPw", 0),
    "taskset": ("", 1),
    "timeout": ("ks", 1),
    "chrt": ("", 1),
}
_LONG_WITH_VALUE = (
    *(
        "--unset",
        "--chdir",
        "--split-string",
        "--format",
        "--output",
        "--adjustment",
        "--class",
        "--classdata",
    ),
    *("--input", "--error", "--cpunodebind", "--physcpubind", "--membind", "--interleave", "--preferred"),
    *("--signal", "--kill-after"),
)


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


def launcher_of(words: Sequence[str], variables: Mapping[str, str]) -> CommandLauncher | None:
    """Return the launcher that a command starts, by itself or behind `env`, `numactl` and their like.

    `variables` are those of the command: PyTorch's launcher takes its options from PET_… as well.
    """
    variables, rest = dict(variables), list(words)
    while rest:
        name = rest.pop(0).rpartition("/")[2]
        if name in _PREFIXES:
            rest = _behind_prefix(name, rest, variables)
        elif re.fullmatch(r"python[0-9.]*t?", name):
            return _launcher_of_python(rest, variables)
        else:
            return _read_options(name, rest, variables)
    return None


def _behind_prefix(name: str, words: Sequence[str], variables: dict[str, str]) -> list[str]:
    """Return the command that `env` or the like starts; the variables that `env` sets are added."""
    letters, before = _PREFIXES[name]
    rest = list(words)
    while rest:
        word = rest[0]
        if name == "env" and re.match(r"[A-Za-z_]\w*=", word):
            variable, _, text = rest.pop(0).partition("=")
            variables[variable] = text
        elif not word.startswith("-"):
            break
        elif name == "env" and (match := re.match(r"-[iv0]*S|--split-string=?", word)):
            text = word[match.end() :]
            rest = [*_split(text or "".join(rest[1:2])), *rest[1 if text else 2 :]]
        else:
            has_value = word in _LONG_WITH_VALUE or (len(word) == 2 and word[1] in letters)
            rest = rest[2 if has_value else 1 :]
    return rest[before:]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []  # `env` refuses it


def _launcher_of_python(words: Sequence[str], variables: Mapping[str, str]) -> CommandLauncher | None:
    """Return the launcher that Python runs, as a module or as a script."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            # A script, perhaps the file of a module.
            path = f".{word.removesuffix('.py').replace('/', '.')}"
            module = next((name for name in _MODULES if path.endswith(f".{name}")), "")
            return _read_options(_MODULES.get(module, word.rpartition("/")[2]), rest, variables)
        if word.startswith("--"):
            rest = rest[word == "--check-hash-based-pycs" :]
            continue
        if option := re.search(r"[cmWX]", word):
            text = word[option.end() :] or "".join(rest[:1])
            rest = rest if word[option.end() :] else rest[1:]
            if option[0] == "c":
                return None
            if option[0] == "m":
                return _read_options(_MODULES.get(text, ""), rest, variables)
    return None


def _read_options(name: str, words: Sequence[str], variables: Mapping[str, str]) -> CommandLauncher | None:
    """Return a launcher with what its options say, which end at the program that it starts."""
    if name == "accelerate":
        # Its other verbs start nothing.
        if words[:1] not in (["launch"], ["test"]):
            return None
        words = words[1:]
    if name not in (*_OF_NODES, *_OF_ALL):
        return None
    nodes = variables.get("PET_NNODES", "")
    meets = bool(variables.get("PET_RDZV_ENDPOINT") or variables.get("PET_MASTER_ADDR"))
    standalone = False
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word, equals, value = rest.pop(0).partition("=")
        option = f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word
        if not equals and option not in _FLAGS and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        if option in _NODES:
            nodes = "all" if option == "--no_ssh" else value
        meets = meets or option in _MEETING
        standalone = standalone or option == "--standalone"
    return CommandLauncher(name=name, nodes=nodes, meets=meets and not standalone, words=tuple(words))


def shell_text() -> str:
    """Return ``_eb_check_command``, a function of POSIX shell that refuses the same in modules and scripts.

    It knows fewer options of `env` and its like, and lets what it does not know pass.
    """
    lists = {
        "of_nodes": _OF_NODES,
        "of_all": _OF_ALL,
        "modules": [f"{module}={name}" for module, name in _MODULES.items()],
        "prefixes": _PREFIXES,
    }
    settings = [f"_eb_{name}=' {' '.join(words)} '" for name, words in lists.items()]
    text = resources.files("envbuild.image").joinpath("command_launchers.sh").read_text(encoding="utf-8")
    return "\n".join([*settings, text])
