"""Variables that choose what carries a job's messages, as facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# Fact → the variable that says it.
VARIABLES: Mapping[str, str] = {
    "fabric.nccl_net": "NCCL_NET",
    "fabric.nccl_net_plugin": "NCCL_NET_PLUGIN",
    "fabric.ofi_provider": "FI_PROVIDER",
    "fabric.ucx_tls": "UCX_TLS",
    "fabric.ucx_takes_tcp": "UCX_TLS",
}


def said_by(variables: Mapping[str, str], *, whole: bool) -> dict[str, Any]:
    """Return what variables say of it: fact → value.

    Parameters
    ----------
    whole : bool
        Whether a variable that is not among them is known not to be set, and not just unknown.
    """
    return {
        path: _READ[path](variables.get(name, "")) if path in _READ else variables.get(name, "")
        for path, name in VARIABLES.items()
        if whole or name in variables
    }


def plugin_file(setting: str) -> str:
    """Return the file that ``NCCL_NET_PLUGIN`` stands for: ``ofi`` is ``libnccl-net-ofi.so``."""
    name = setting.rpartition("/")[2]
    return name if not name or ".so" in name else f"libnccl-net-{name}.so"


def takes_tcp(transports: str) -> bool:
    """Whether UCX may take TCP by ``UCX_TLS``: a list of what it may take, or after ``^`` of what not."""
    names = {name.strip() for name in transports.removeprefix("^").split(",")}
    return "tcp" not in names if transports.startswith("^") else bool(names & {"", "all", "tcp"})


# Fact → how it follows from its variable, where it is not the variable's text.
_READ: Mapping[str, Callable[[str], Any]] = {
    "fabric.nccl_net_plugin": plugin_file,
    "fabric.ucx_takes_tcp": takes_tcp,
}
