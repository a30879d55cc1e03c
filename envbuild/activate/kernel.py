"""Jupyter kernelspecs whose kernels run in an image.

A kernelspec is a directory ``share/jupyter/kernels/NAME`` with ``kernel.json``. The kernel of a module starts
by the module's own ``python3``; that of an image by a launcher beside ``kernel.json``.

Source: https://jupyter-client.readthedocs.io, "Making kernels for Jupyter".
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from envbuild.activate.install import os_errors_explained, write_text
from envbuild.activate.launcher import data_text, kernel_launcher_text
from envbuild.activate.layout import HOST_STAGE, is_there
from envbuild.errors import Location, RequestError
from envbuild.image.runnable import Runnable
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import SiteBind
from envbuild.system.apptainer import Apptainer
from envbuild.system.files import make_directory, read_input

KERNEL = "kernel.json"
KERNELS = Path("share/jupyter/kernels")
_START = "start_kernel.py"
_PIPS = ("bin/pip", "bin/pip3")
_PYTHON = "python3"
_EXECUTE_ALL = 0o755
_LIMIT_BYTES = 1 << 20
# It becomes a directory and a word of command lines. Jupyter takes `.` and `-` in front, too.
# Source: jupyter_client, kernelspec.py, `_kernel_name_pat`.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_MAX_NAME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelImage:
    """An image whose kernel has its own launcher."""

    path: Path
    """The SIF; absolute."""
    runnable: Runnable
    apptainer: Apptainer
    binds: tuple[SiteBind, ...] = ()
    """Host paths to bind if they exist."""
    host_libs: HostLibraryPlan | None = None
    """The software that the image takes from its site."""
    python: str = ""
    """The path of its Python; empty for `python3` on its PATH."""
    stamp: str
    """The `stamp_of` the image when its contents were compared."""
    repeat: tuple[str, ...]
    """The command line that writes the kernelspec again."""


def check_kernel_name(name: str) -> None:
    """Raise a RequestError if a text cannot name a kernel."""
    if not (re.fullmatch(_NAME, name) and len(name) <= _MAX_NAME):
        problem = f"`{name[:_MAX_NAME]}` cannot name a kernel"
        hint = f"use up to {_MAX_NAME} letters, digits, `.`, `_` and `-` for --name, a letter or digit first"
        raise RequestError(problem, hint=hint)


def kernel_name(label: str) -> str:
    """Return the name of a kernel for ``NAME/VERSION``."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", label)


def install_kernel(directory: Path, *, title: str, image: KernelImage | None, python: Path | None) -> Path:
    """Write a kernelspec to `directory`, for an image, or for the `python3` of a module; return its launcher.

    RequestError: another's kernelspec or a link is there, or the directory cannot be written. MachineError:
    the disk is full.
    """
    for path in (directory, directory / "bin"):
        if path.is_symlink():
            problem = f"a link is there, and the kernel would lie elsewhere: {path.readlink()}"
            raise RequestError(problem, at=Location(path=path), hint="remove it, or use another --name")
    path = directory / KERNEL
    if is_there(path) and not _made_by_us(path):
        problem = f"there is a kernel `{directory.name}` already, and envbuild did not make it"
        hint = "name this one otherwise with --name, or remove that: `jupyter kernelspec remove`"
        raise RequestError(problem, at=Location(path=path), hint=hint)
    launcher = python or directory / _PYTHON
    with os_errors_explained(directory, "install", hint="name another place with --prefix DIR"):
        make_directory(directory, mode=_EXECUTE_ALL)
        if image is not None:
            if image.host_libs is not None:
                image.host_libs.fill_stage(directory / HOST_STAGE)
            text = kernel_launcher_text(
                directory,
                image=image.path,
                runnable=image.runnable,
                apptainer=image.apptainer,
                binds=image.binds,
                host_libs=image.host_libs,
                python=image.python,
                stamp=image.stamp,
                repeat=image.repeat,
            )
            write_text(launcher, text, mode=_EXECUTE_ALL)
        write_text(directory / _START, data_text(_START))
        make_directory(directory / "bin", mode=_EXECUTE_ALL)
        for pip in _PIPS:
            write_text(directory / pip, data_text("kernel_pip.sh"), mode=_EXECUTE_ALL)
        # Last: Jupyter lists what has this file.
        write_text(path, _kernel_text(launcher, directory, title))
    return launcher


def _kernel_text(launcher: Path, directory: Path, title: str) -> str:
    kernel = {
        "argv": [str(launcher), str(directory / _START), "-f", "{connection_file}"],
        "display_name": title,
        "language": "python",
        # The launcher binds it.
        "env": {"ENVBUILD_KERNEL": str(directory)},
        # By a message: a signal would reach Apptainer, too.
        "interrupt_mode": "message",
        "metadata": {"debugger": True, "made_by": "envbuild"},
    }
    return json.dumps(kernel, indent=1) + "\n"


def _made_by_us(path: Path) -> bool:
    try:
        kernel = json.loads(read_input(path, limit_bytes=_LIMIT_BYTES))
        return bool(kernel["metadata"]["made_by"] == "envbuild")
    except (RequestError, ValueError, LookupError, TypeError, RecursionError):
        return False


def users_kernels() -> Path:
    """Return the directory of this user's kernels.

    Source: jupyter_core, paths.py, `jupyter_data_dir`.
    """
    if data := os.environ.get("JUPYTER_DATA_DIR"):
        return Path(data) / "kernels"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "jupyter/kernels"
