"""Kernel: write a Jupyter kernelspec whose kernel runs in an image."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from envbuild.activate.install import absolute
from envbuild.activate.installed import find_installed, select
from envbuild.activate.kernel import KERNELS, KernelImage, install_kernel
from envbuild.activate.launcher import stamp_of
from envbuild.activate.layout import parse_module
from envbuild.errors import Location, MachineError, RequestError
from envbuild.events import task
from envbuild.image.file import ImageFile
from envbuild.image.runnable import identity_of
from envbuild.image.verify import check_image_is_whole
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer, not_started
from envbuild.system.files import exists
from envbuild.workflows.arguments import check_outside_store, shell_path
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.hosting import warn_of_absent_binds
from envbuild.workflows.inputs import site_of
from envbuild.workflows.module import foreign_python, runnable_of
from envbuild.workflows.settings import Settings

# It becomes a directory and a word of command lines. Jupyter takes `.` and `-` in front, too.
# Source: jupyter_client, kernelspec.py, `_kernel_name_pat`.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_MAX_NAME = 128
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledKernel:
    """A kernelspec that was written."""

    name: str
    """As in `jupyter kernelspec list`."""
    directory: Path
    image: Path
    """The image that its kernel runs in."""


def write_kernel(
    image_or_module: str, *, root: Path | None, prefix: Path | None, name: str | None, settings: Settings
) -> InstalledKernel:
    """Write a kernelspec for an image, or for a module ``NAME/VERSION`` below `root`.

    It goes below `prefix`, as for `sys.prefix` of a Jupyter, or to the user's own directory. RequestError:
    there is no such image or module, it has no ipykernel, or the name is invalid or taken. MachineError: no
    container starts here.
    """
    if name is not None and not (re.fullmatch(_NAME, name) and len(name) <= _MAX_NAME):
        problem = f"`{name[:_MAX_NAME]}` cannot name a kernel"
        hint = f"use up to {_MAX_NAME} letters, digits, `.`, `_` and `-` for --name, a letter or digit first"
        raise RequestError(problem, hint=hint)
    site = site_of(settings)
    apptainer = settings.find_apptainer(site)
    if root is None:
        path, python = absolute(_existing(image_or_module)), None
        with ImageFile.open(path) as image:
            digest = identity_of(image, settings.store)
            runnable, own_python = runnable_of(image, digest), foreign_python(image)
            if image.built_by_envbuild:
                title = f"compare {path.name}"
                with task(settings.emit, "verify", title, total_bytes=image.size_bytes) as reading:
                    check_image_is_whole(image, advanced=reading.advance)
            # Of the file that was compared, so that a later change is noticed.
            stamp = stamp_of(image.program_path)
        label = f"{runnable.name}/{runnable.version}"
        if site is not None:
            warn_of_absent_binds(site, settings.emit)
        kernel_image = KernelImage(
            path=path,
            runnable=runnable,
            apptainer=apptainer,
            binds=site.binds if site else (),
            python=own_python,
            stamp=stamp,
            repeat=_repeat(path, prefix, name, settings),
        )
    else:
        (layout,) = select(absolute(root), *parse_module(image_or_module), every=False)
        module = next(module for module in find_installed(absolute(root)) if module.layout == layout)
        if module.image is None or module.problems:
            problem = f"the module `{layout.label}` is broken: {'; '.join(module.problems)}"
            raise RequestError(problem, hint="install it again")
        path, python, label, kernel_image = module.image, layout.home / "bin/python3", layout.label, None
        with ImageFile.open(path) as image:
            own_python = foreign_python(image)
    name = name or re.sub(r"[^A-Za-z0-9._-]", "-", label)
    directory = (absolute(prefix) / KERNELS if prefix else _users_kernels()) / name
    check_outside_store(directory, settings.store.path, hint="name another place with --prefix DIR")
    with (
        task(settings.emit, "kernel", f"kernel {name}"),
        explain_failure("exec", settings, apptainer=apptainer.program),
    ):
        _check_has_ipykernel(path, own_python or "python3", apptainer)
    title = label if name == re.sub(r"[^A-Za-z0-9._-]", "-", label) else name
    install_kernel(directory, title=title, image=kernel_image, python=python)
    return InstalledKernel(name=name, directory=directory, image=path)


def _repeat(image: Path, prefix: Path | None, name: str | None, settings: Settings) -> tuple[str, ...]:
    """Return the command line that writes the kernelspec of an image again."""
    values = {
        "--name": name,
        "--prefix": absolute(prefix) if prefix else None,
        "--site": settings.site,
        "--apptainer": settings.apptainer,
    }
    options = [text for option, value in values.items() if value is not None for text in (option, str(value))]
    return ("envbuild", "kernel", "install", str(image), *options)


def _existing(name: str) -> Path:
    path = Path(name)
    if not exists(path):
        hint = "a module is named with its root: `envbuild kernel install NAME/VERSION --root DIR`"
        raise RequestError(f"there is no image `{name}`", hint=hint)
    return path


def _users_kernels() -> Path:
    """Return the directory of this user's kernels.

    Source: jupyter_core, paths.py, `jupyter_data_dir`.
    """
    if data := os.environ.get("JUPYTER_DATA_DIR"):
        return Path(data) / "kernels"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "jupyter/kernels"


def _check_has_ipykernel(image: Path, python: str, apptainer: Apptainer) -> None:
    argv = apptainer.command(image, [python, "-s", "-c", "import ipykernel"], cwd="/")
    done = process.run(argv, env=host.environment(), cwd=Path("/"), timeout_s=_LIMIT_S, guarded=True)
    if done.ok:
        return
    if (refusal := not_started(done, image.name)) is not None:
        raise refusal
    if done.timed_out:
        problem = f"`import ipykernel` in `{image.name}` took more than {_LIMIT_S:g} s"
        raise MachineError(problem, hint="try again when this machine or its file system is less busy")
    said = done.last_lines(1)
    raise RequestError(
        "the image has no ipykernel"
        if "No module named 'ipykernel'" in said
        else f"no kernel starts: {said}",
        at=Location(path=image),
        hint=f"`envbuild extend {shell_path(image)} --python ipykernel` writes an image that has it;"
        " a spec asks for it with `packages: {python: [ipykernel]}`",
    )
