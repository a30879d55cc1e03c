"""Check and test an extended image of another tool: what the addition changed, and whether it works."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.build.sandbox import Sandbox
from envbuild.errors import Location, RequestError
from envbuild.events import Note, task
from envbuild.extend.examine import ExaminedImage, examine_image
from envbuild.extend.python import probe_python
from envbuild.image.extension import ExtensionNote
from envbuild.image.file import ImageFile
from envbuild.image.runnable import DescribedImage, describe, identity_of
from envbuild.inputs.catalog import read_recipe
from envbuild.jobs.judge import Package
from envbuild.jobs.report import CheckResult
from envbuild.launch.start import Container
from envbuild.squashfs.reader import Squashfs
from envbuild.system.apptainer import Apptainer
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.settings import Settings

# Its job proves the collectives of any MPI.
_RECIPE, _JOB = "mpich", "mpi.collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedImage:
    """An extended image of another tool, examined."""

    image: ImageFile
    note: ExtensionNote
    """The record of what was added."""
    runnable: DescribedImage
    examined: ExaminedImage


def examine_extended(
    image: ImageFile, settings: Settings, *, unfit: Mapping[str, bool]
) -> ExtendedImage | None:
    """Examine an extended image of another tool; None if envbuild built it.

    `unfit`: option for images of envbuild's alone → whether it was named. RequestError: one was, or nothing
    was added to the image.
    """
    if image.built_by_envbuild:
        return None
    path, note = image.path, image.note
    if note is None:
        raise RequestError(
            f"`{path.name}` is an image that envbuild neither built nor extended: nothing says what it must"
            " hold",
            at=Location(path=path),
            hint="`envbuild extend` adds packages, and refuses what would break the image; `check` and `test`"
            " judge the result",
        )
    if named := " and ".join(option for option, was_named in unfit.items() if was_named):
        problem = f"{named}: only for images that envbuild built"
        raise RequestError(problem, at=Location(path=path), hint=f"leave {named} out")
    if not note.python:
        raise RequestError(
            f"only files and variables were added to `{path.name}`: there are no packages to judge",
            at=Location(path=path),
            hint=f"`envbuild extend --show {path.name}` lists them; `apptainer exec` tries them",
        )
    title = f"read {path.name}"
    with task(settings.emit, "verify", title, total_bytes=image.size_bytes) as reading:
        digest = identity_of(image, settings.store, advanced=reading.advance)
    runnable = describe(image, digest)
    with task(settings.emit, "check", f"check {path.name}") as running, contextlib.ExitStack() as opened:
        with explain_failure("test", settings):
            python = probe_python(
                image.files,
                note.python,
                sandbox=Sandbox(apptainer=settings.find_apptainer(), root=image.program_path),
                log=settings.store.directory("logs") / "extend.log",
                at=path,
            )
        base = _base(image, note, opened)
        examined = examine_image(image.root, image.files, python, note, base)
        running.failed = not examined.preflight.passed
    other = note.extensions[0].image if base is not None else "itself without what was added"
    settings.emit(Note(text=f"compared with {other}: problems that were there before do not count"))
    return ExtendedImage(image=image, note=note, runnable=runnable, examined=examined)


def _base(image: ImageFile, note: ExtensionNote, opened: contextlib.ExitStack) -> Squashfs | None:
    """Open the image before anything was added, if it still lies beside this one."""
    first = note.extensions[0]
    with contextlib.suppress(RequestError):
        base = opened.enter_context(ImageFile.open(image.path.with_name(Path(first.image).name)))
        if base.tables_digest == first.digest:
            return base.root
    return None


def packages_of_extended(extended: ExtendedImage) -> list[Package]:
    """Return the packages that were added for a Python, and those that it had when they were requested.

    Each must be found where it was put, or where it was.
    """
    python = extended.examined.python
    own = [extension for extension in extended.note.extensions if extension.python == python.executable]
    requests = [extension.requests for extension in own]
    requested: set[str] = {
        canonicalize_name(Requirement(text).name) for asked in requests for text in asked.python
    }
    requested |= {name for asked in requests for name in asked.upgrade}
    requested |= {
        canonicalize_name(wheel.file.partition("-")[0]) for asked in requests for wheel in asked.wheels
    }
    added = {package.name: package.version for extension in own for package in extension.packages}
    had = {
        name: python.installed[name] for name in sorted(requested - added.keys()) if name in python.installed
    }
    return [
        *(
            Package(name=name, version=version, requested=name in requested, sites=[python.site_packages])
            for name, version in sorted(added.items())
        ),
        *(Package(name=name, version=had[name].version, sites=[had[name].site]) for name in had),
    ]


def skipped_packages(extended: ExtendedImage) -> Iterator[CheckResult]:
    """Yield a check for each package that was added for another Python."""
    expected = f"`{extended.examined.python.executable}` can import it"
    for name in extended.examined.of_others:
        yield CheckResult("SKIP", f"image.added/{name}", expected, "added for another Python of the image")


def container_of(extended: ExtendedImage, path: Path, apptainer: Apptainer) -> Container:
    """Return the container of an extended image, with the job of our MPI recipes if it has what that needs.

    That is an mpiexec, mpi4py and NumPy; `path` is where Apptainer finds the image.
    """
    python, runnable = extended.examined.python, extended.runnable
    programs = {path for path in extended.image.files.entries if path.endswith("/bin/mpiexec")}
    brought: dict[str, dict[str, bytes]] = {}
    if programs and {"mpi4py", "numpy"} <= python.installed.keys():
        family = "openmpi" if extended.examined.has_openmpi else "mpich"
        source = read_recipe(_RECIPE)
        job = next(job for job in source.jobs if job.id == _JOB)
        brought[job.id] = {job.file: source.files[f"verify/{job.file}"]}
        runnable = runnable.model_copy(update={"mpi": family, "mpi_family": family, "jobs": (job,)})
    else:
        runnable = runnable.model_copy(update={"mpi": ""})
    return Container(
        image=path,
        file_name=extended.image.path.name,
        runnable=runnable,
        apptainer=apptainer,
        python=python.executable,
        programs=python.scripts if f"{python.scripts}/mpiexec" in programs else "",
        brought=brought,
    )
