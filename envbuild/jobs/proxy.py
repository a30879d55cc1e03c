"""The line by which Hydra's mpiexec starts its proxy on a host: read, checked, and written anew. Pure.

MPICH 5.0 and Intel MPI 2021.19 were seen. A pod runs the proxy of its own image with options that are checked
here, so that nothing else can be started through the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

# Option → smallest and greatest value. The order is that of the command line.
_MPICH: Mapping[str, tuple[int, int]] = {
    "pgid": (0, 1 << 16),
    "retries": (0, 1000),
    "usize": (-2, 1 << 20),
    "pmi-port": (0, 1),
    "gpus-per-proc": (-2, 1024),
    "gpu-subdevs-per-proc": (-2, 1024),
    "proxy-id": (0, 1 << 16),
}
_INTEL: Mapping[str, tuple[int, int]] = {
    "pgid": (0, 1 << 16),
    "launcher-number": (0, 64),
    "tree-width": (1, 1 << 16),
    "tree-level": (0, 64),
    "time-left": (-1, 1 << 30),
    "launch-type": (0, 64),
    "proxy-id": (0, 1 << 16),
    "node-id": (0, 1 << 16),
    "subtree-size": (1, 1),
}
_INTEL_INNER: Mapping[str, tuple[int, int]] = {
    "usize": (-2, 1 << 20),
    "auto-cleanup": (0, 1),
    "abort-signal": (1, 64),
}
_OPTIONS = {"mpich": _MPICH, "intel-mpi": {**_INTEL, **_INTEL_INNER}}
# Pods set these themselves.
_TEXTS = ("rmk", "launcher", "launcher-exec", "demux", "base-path", "upstream-host")


def read_line(words: Sequence[str], hosts: Sequence[str]) -> tuple[int, Mapping[str, object]]:
    """Return the index of the host in mpiexec's line, and the values that its pod needs.

    ValueError: it is not a line that mpiexec of MPICH or Intel MPI is known to write.
    """
    rest = [word for word in words if word not in ("-x", "-q", "-n", "-T")]
    if len(rest) < 2 or rest[0] not in hosts:
        raise ValueError(f"mpiexec names a host that is not a pod of the job: {rest[:1]}")
    family = "intel-mpi" if rest[1].strip('"').endswith("hydra_bstrap_proxy") else "mpich"
    values: dict[str, object] = {"family": family}
    options = iter(rest[2:])
    for option in options:
        if option.strip('"').endswith("hydra_pmi_proxy"):
            continue
        name, value = option.removeprefix("--"), next(options, "")
        if name == "control-port":
            values["port"] = int(value.rpartition(":")[2])
        elif name == "upstream-port":
            values["port"] = int(value)
        elif name in _OPTIONS[family]:
            values[name] = int(value)
        elif name not in _TEXTS:
            raise ValueError(f"mpiexec gives its proxy an option that is not known: {option!a}")
    index = hosts.index(rest[0])
    check(values, index)
    return index, values


def check(values: Mapping[str, object], index: int) -> None:
    """ValueError: these are not the values of the proxy of the pod with this index."""
    family = values.get("family")
    if not isinstance(family, str) or family not in _OPTIONS:
        raise ValueError("the family of MPI is not known")
    ranges = {**_OPTIONS[family], "port": (1024, 65535)}
    if values.keys() != {"family", *ranges}:
        raise ValueError(f"the options of the proxy are others: {sorted(values)}"[:300])
    for name, (least, most) in ranges.items():
        value = values[name]
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"`{name}` is not a whole number from {least} to {most}")
    if values["proxy-id"] != index:
        raise ValueError(f"the proxy is that of pod {values['proxy-id']}, and this is pod {index}")


def proxy_words(values: Mapping[str, object], index: int, directory: Path, pod_0: str) -> list[str]:
    """Return the command of a pod's proxy; its program is in `directory`, beside the image's mpiexec."""
    check(values, index)
    pmi_proxy = str(directory / "hydra_pmi_proxy")
    launcher = ["--launcher", "ssh", "--launcher-exec", "/bin/false"]
    if values["family"] == "mpich":
        start = [pmi_proxy, "--control-port", f"{pod_0}:{values['port']}", "--rmk", "user", *launcher]
        return [*start, "--demux", "poll", *_words(_MPICH, values)]
    start = [str(directory / "hydra_bstrap_proxy"), "--upstream-host", pod_0]
    start += ["--upstream-port", str(values["port"]), *launcher, "--base-path", f"{directory}/"]
    return [*start, *_words(_INTEL, values), pmi_proxy, *_words(_INTEL_INNER, values)]


def _words(names: Mapping[str, object], values: Mapping[str, object]) -> list[str]:
    return [word for name in names for word in (f"--{name}", str(values[name]))]
