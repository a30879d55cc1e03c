"""Build distributions from their source archive, offline, on the base plus a toolchain.

Source: PEP 517 (build hooks), PEP 625 (an archive holds one directory).
"""

from __future__ import annotations

import base64
import errno
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

from envbuild.build.bytecode import base_python, compile_modules
from envbuild.build.layer_writer import LayerWriter
from envbuild.build.sandbox import Sandbox
from envbuild.build.wheel_layers import WheelContent, WheelInput, add_bytecode, add_files_of_wheel
from envbuild.build.wheels import environment_scheme, unpack_wheel
from envbuild.errors import BuildError
from envbuild.plan.model import InputFile, SourceStep
from envbuild.system import host
from envbuild.system.apptainer import Bind
from envbuild.system.descriptors import close, descriptor_path, open_directory, open_file

# Compilers write the path of the source into their output, so it is always the same.
_WORK = "/mnt/work"
_SOURCE = f"{_WORK}/src"
_IMPORTS = "/mnt/site"
_TIMEOUT_S = 7200.0
_MAX_PYPROJECT_BYTES = 4 << 20
# Of a project that names no backend (PEP 517).
_DEFAULT_BACKEND = "setuptools.build_meta:__legacy__"

# Runs in the sandbox, as pip runs it without isolation. A build tool would read the output of the backend to
# its end, and wait for every process that keeps it open.
_BUILD = """\
import importlib, os, sys

backend, source, out, *paths = sys.argv[1:]
os.chdir(source)
sys.path[:] = [*paths, *filter(None, sys.path)]
module, _, names = backend.partition(":")
hooks = importlib.import_module(module)
for name in filter(None, names.split(".")):
    hooks = getattr(hooks, name)
hooks.build_wheel(out)
"""


def build_from_source(
    step: SourceStep,
    *,
    archive: Path,
    wheels: Sequence[tuple[InputFile, Path]],
    stage: Path,
    plain: Sandbox,
    equipped: Sandbox,
    log: Path,
    writer: LayerWriter,
) -> None:
    """Build a wheel from a verified source archive, and add its files to a layer as those of any other.

    `wheels` are imported by the build; the directory of each holds that file only. `stage` is an empty
    directory. `plain` is a sandbox with the base only, in which modules are compiled; `equipped` also has the
    toolchain, the virtual environment and the libraries to compile against. BuildError: the archive cannot be
    unpacked, a patch does not apply, or the build fails.
    """
    built = stage / "build"
    work = built / "work"
    for directory in (built, built / "archive", built / "patches", work):
        _make_passable(directory)
    for name in ("src", "scratch", "wheel"):
        _make_passable(work / name)
    for patch in step.patches:
        (built / "patches" / patch.name).write_bytes(base64.b64decode(patch.content))
    build = _SourceBuild(step=step, inputs=built, sandbox=equipped, log=log)
    build.unpack(archive)
    build.install(wheels)
    build.patch()
    wheel = build.build()
    sources = stage / "sources"
    sources.mkdir()
    content = WheelContent.read(
        WheelInput(
            wheel=wheel,
            scheme=environment_scheme(wheel.name, step.prefix, step.interpreter),
            python=f"{step.prefix}/bin/python",
        ),
        sources / "modules",
    )
    add_files_of_wheel(content.store(writer), writer)
    python = base_python(step.interpreter)
    bytecode = compile_modules(
        content.modules, sources, stage / "bytecode", python=python, sandbox=plain, log=log
    )
    add_bytecode(content.modules, bytecode, step.interpreter.version, writer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceBuild:
    """The build of one distribution."""

    step: SourceStep
    inputs: Path
    """The sandbox sees it at ``/mnt``."""
    sandbox: Sandbox
    log: Path

    def unpack(self, archive: Path) -> None:
        """Unpack the archive's one directory, in a sandbox that can write nowhere else."""
        self._run(
            [
                *("tar", "--extract", "--gzip", f"--file=/mnt/archive/{archive.name}"),
                *("--strip-components=1", f"--directory={_SOURCE}"),
                *("--no-same-owner", "--no-same-permissions"),
            ],
            binds=[Bind(source=archive.parent.absolute(), target="/mnt/archive")],
            what=f"`{archive.name}` cannot be unpacked",
        )

    def install(self, wheels: Sequence[tuple[InputFile, Path]]) -> None:
        """Unpack what the build imports, beside the virtual environment.

        Not below what the sandbox can write to: a link that a program in it made could lead out.
        """
        scheme = dict.fromkeys(("purelib", "platlib"), "/site")
        scheme |= {"scripts": "/site/bin", "data": "/site", "headers": "/site/include"}
        for _, path in wheels:
            unpack_wheel(path, scheme, self.inputs, python=f"{self.step.prefix}/bin/python")

    def patch(self) -> None:
        """Apply the patches, which must fit exactly."""
        for patch in self.step.patches:
            self._run(
                [
                    *("patch", "--strip=1", "--batch", "--forward", "--fuzz=0"),
                    *(f"--directory={_SOURCE}", f"--input=/mnt/patches/{patch.name}"),
                ],
                what=f"the patch `{patch.name}` does not fit",
            )

    def build(self) -> Path:
        """Call the source's own build; return the wheel that it made."""
        backend, paths = self._backend()
        self._run(
            [
                *(f"{self.step.prefix}/bin/python", "-c", _BUILD, backend, _SOURCE, f"{_WORK}/wheel"),
                *(f"{_SOURCE}/{path}" for path in paths),
            ],
            what=f"`{self.step.archive.name}` could not be built",
        )
        output = self.inputs / "work" / "wheel"
        # The output is not trusted: a link in it could lead to files of this host.
        wheels = [] if output.is_symlink() else sorted(output.glob("*.whl"))
        if len(wheels) != 1 or wheels[0].is_symlink() or not wheels[0].is_file():
            raise BuildError(
                f"the build of `{self.step.archive.name}` made {len(wheels)} wheels, not one",
                hint=f"the whole log is at `{self.log}`",
            )
        if not _is_of(wheels[0].name, self.step.archive.name):
            raise BuildError(
                f"the build of `{self.step.archive.name}` made {wheels[0].name!r}, which is another"
                " distribution or version",
                hint="the archive must hold what the lock names: take another version",
            )
        return wheels[0]

    def _backend(self) -> tuple[str, Sequence[str]]:
        """Return the build backend that the patched source names, and where in it to look for that."""
        try:
            with _opened(self.inputs / "work" / "src" / "pyproject.toml") as file:
                text = file.read(_MAX_PYPROJECT_BYTES + 1)
            if len(text) > _MAX_PYPROJECT_BYTES:
                raise ValueError(f"it is larger than {_MAX_PYPROJECT_BYTES} bytes")
            system = tomllib.loads(text.decode()).get("build-system", {})
            backend, paths = system.get("build-backend", _DEFAULT_BACKEND), system.get("backend-path", [])
            if not all(isinstance(name, str) and "\0" not in name for name in (backend, *paths)):
                raise ValueError("`build-system` is malformed")
        except FileNotFoundError:
            return _DEFAULT_BACKEND, ()
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            problem = f"`{self.step.archive.name}` has a `pyproject.toml` that cannot be read: {error}"
            raise BuildError(
                problem,
                hint="take another version, or correct it by a patch",
            ) from error
        return backend, paths

    def _run(self, argv: Sequence[str], *, what: str, binds: Sequence[Bind] = ()) -> None:
        self.sandbox.run(
            argv,
            binds=[
                Bind(source=self.inputs.absolute(), target="/mnt"),
                Bind(source=(self.inputs / "work").absolute(), target=_WORK, writable=True),
                *binds,
            ],
            env=self._environment(),
            log=self.log,
            what=what,
            timeout_s=_TIMEOUT_S,
        )

    def _environment(self) -> Mapping[str, str]:
        jobs = str(host.cores())
        return {
            "PATH": f"{self.step.prefix}/bin:/opt/mpi/bin:{_IMPORTS}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": _IMPORTS,
            "LD_LIBRARY_PATH": "/opt/mpi/lib",
            "TMPDIR": f"{_WORK}/scratch",
            # The number of jobs does not change the output.
            "MAKEFLAGS": f"-j{jobs}",
            "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
            "MAX_JOBS": jobs,
            **self.step.environment,
        }


def _is_of(wheel: str, archive: str) -> bool:
    """Return whether a wheel is of the distribution and version of a source archive."""
    try:
        return parse_wheel_filename(wheel)[:2] == parse_sdist_filename(archive)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file in a directory that a sandbox could write to; OSError if a link leads to either."""
    directory = open_directory(path.parent)
    try:
        file = open_file(descriptor_path(directory) / path.name)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            with open(file, "rb", closefd=False) as stream:
                yield stream
        finally:
            close(file)
    finally:
        close(directory)


def _make_passable(directory: Path) -> None:
    """Make a directory, unless it exists, that every user can enter."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)
