"""Kernel: write a Jupyter kernelspec whose kernel runs in an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.activate.install import absolute
from envbuild.activate.installed import find_installed, select
from envbuild.activate.kernel import (
    KERNELS,
    KernelImage,
    check_kernel_name,
    install_kernel,
    kernel_name,
    users_kernels,
)
from envbuild.activate.launcher import stamp_of
from envbuild.activate.layout import parse_module
from envbuild.activate.model import runnable_of
from envbuild.errors import Location, MachineError, RequestError
from envbuild.events import task
from envbuild.image.file import ImageFile
from envbuild.image.runnable import added_python, identity_of
from envbuild.image.verify import check_image_is_whole
from envbuild.quoting import shell_path
from envbuild.spec.site import Site
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer
from envbuild.system.files import exists
from envbuild.workflows.arguments import check_architecture, check_outside_store
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.hosting import host_libraries_for, warn_of_absent_binds
from envbuild.workflows.inputs import site_of
from envbuild.workflows.older import warn_if_older
from envbuild.workflows.settings import Settings

_LIMIT_S = 120.0
_ELSEWHERE = "install the kernel where it can start"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledKernel:
    """A kernelspec that was written."""

    name: str
    """As in `jupyter kernelspec list`."""
    directory: Path
    image: Path
    """The image that its kernel runs in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartedImage:
    """The image in which a kernel runs, and what starts it."""

    path: Path
    label: str
    """``NAME/VERSION``."""
    python: str
    """Its Python, to which packages were added; empty for `python3` on its PATH."""
    launcher: Path | None = None
    """The module's `python3`; None if the kernelspec gets a launcher."""
    kernel_image: KernelImage | None = None


def write_kernel(
    image_or_module: str, *, root: Path | None, prefix: Path | None, name: str | None, settings: Settings
) -> InstalledKernel:
    """Write a kernelspec for an image, or for a module ``NAME/VERSION`` below `root`.

    It goes below `prefix`, as for `sys.prefix` of a Jupyter, or to the user's own directory. RequestError:
    there is no such image or module, it has no ipykernel, or the name is invalid or taken. MachineError: no
    container starts here.
    """
    if name is not None:
        check_kernel_name(name)
    site = site_of(settings)
    apptainer = settings.find_apptainer(site)
    if root is None:
        repeat = partial(_repeat, prefix=prefix, name=name, settings=settings)
        started = _image(absolute(_existing(image_or_module)), site, apptainer, repeat, settings)
    else:
        started = _module(image_or_module, absolute(root))
    default_name = kernel_name(started.label)
    name = name or default_name
    directory = (absolute(prefix) / KERNELS if prefix else users_kernels()) / name
    check_outside_store(directory, settings.store.path, hint="name another directory with --prefix DIR")
    with (
        task(settings.emit, "kernel", f"kernel {name}"),
        explain_failure("exec", settings, apptainer=apptainer.program),
    ):
        _check_has_ipykernel(started.path, started.python or "python3", apptainer)
    title = started.label if name == default_name else name
    install_kernel(directory, title=title, image=started.kernel_image, python=started.launcher)
    return InstalledKernel(name=name, directory=directory, image=started.path)


def _image(
    path: Path,
    site: Site | None,
    apptainer: Apptainer,
    repeat: Callable[[Path], tuple[str, ...]],
    settings: Settings,
) -> _StartedImage:
    """Return an image whose kernel gets its own launcher; one of envbuild's is compared with its manifest."""
    with ImageFile.open(path) as image:
        warn_if_older(image, settings.emit)
        digest = identity_of(image, settings.store)
        runnable, python = runnable_of(image, digest), added_python(image)
        check_architecture(path, runnable.architecture, hint=_ELSEWHERE)
        if image.built_by_envbuild:
            title = f"compare {path.name}"
            with task(settings.emit, "verify", title, total_bytes=image.size_bytes) as reading:
                check_image_is_whole(image, advanced=reading.advance)
        # Of the file that was compared, so that a later change is noticed.
        stamp = stamp_of(image.program_path)
        host_libs = host_libraries_for(image, settings)
    if site is not None:
        warn_of_absent_binds(site, settings.emit)
    kernel_image = KernelImage(
        path=path,
        runnable=runnable,
        apptainer=apptainer,
        binds=site.binds if site else (),
        host_libs=host_libs,
        python=python,
        stamp=stamp,
        repeat=repeat(path),
    )
    label = f"{runnable.name}/{runnable.version}"
    return _StartedImage(path=path, label=label, python=python, kernel_image=kernel_image)


def _module(name: str, root: Path) -> _StartedImage:
    """Return the image of a module, which starts its kernel; RequestError if it is broken."""
    (layout,) = select(root, *parse_module(name), every=False)
    module = next(module for module in find_installed(root) if module.layout == layout)
    if module.image is None or module.problems:
        problem = f"the module `{layout.label}` is broken: {'; '.join(module.problems)}"
        raise RequestError(problem, hint="install it again")
    with ImageFile.open(module.image) as image:
        check_architecture(image.path, image.architecture, hint=_ELSEWHERE)
        python = added_python(image)
    launcher = layout.home / "bin/python3"
    return _StartedImage(path=module.image, label=layout.label, python=python, launcher=launcher)


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


def _check_has_ipykernel(image: Path, python: str, apptainer: Apptainer) -> None:
    argv = apptainer.command(image, [python, "-s", "-c", "import ipykernel"], cwd="/")
    done = process.run(argv, env=host.environment(), cwd=Path("/"), timeout_s=_LIMIT_S, guarded=True)
    if done.ok:
        return
    if (refusal := apptainer.not_started(done, image.name)) is not None:
        raise refusal
    if done.timed_out:
        problem = f"`import ipykernel` in `{image.name}` took more than {_LIMIT_S:g} s"
        raise MachineError(problem, hint="try again when this machine or its file system is less busy")
    last_line = done.last_lines(1)
    raise RequestError(
        "the image has no ipykernel"
        if "No module named 'ipykernel'" in last_line
        else f"no kernel starts: {last_line}",
        at=Location(path=image),
        hint=f"`envbuild extend {shell_path(image)} --python ipykernel` writes an image that has it;"
        " a spec asks for it with `packages: {python: [ipykernel]}`",
    )
