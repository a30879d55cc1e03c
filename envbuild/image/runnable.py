"""The facts that starting an image of any tool needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Literal, Protocol

from pydantic import ValidationError

from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.image.file import ImageFile
from envbuild.image.locales import locale_of_starts
from envbuild.image.model import StoredJob, Variable
from envbuild.jobs.envbuild_libraries import LIBRARIES
from envbuild.jobs.judge import Job
from envbuild.jobs.launchers import on_one_host
from envbuild.spec.model import (
    Digest,
    Model,
    Name,
    ReleaseVersion,
    Text,
    first_problem,
    full_match,
)
from envbuild.store.store import Store

_LONGEST = 200
# As a manifest takes it.
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:+-]{0,127}")
_RECORD_BYTES = 4096
_MPI_FAMILIES = ("mpich", "openmpi", "intel-mpi")
_MPI_LIBRARY = re.compile(r".*/libmpi\.so\.(12|20|40)")
# MPICH's library has the same name.
_OF_INTEL_MPI = re.compile(r".*/bin/impi_info")
# Runtime libraries, and builds of Python packages.
_ACCELERATORS = {
    "cuda": re.compile(rf"/{LIBRARIES['cudart']}$|-[^/]*\+cu[0-9]+\.dist-info$"),
    "rocm": re.compile(rf"/{LIBRARIES['hip']}$|-[^/]*\+rocm[0-9.]+\.dist-info$"),
}


class Runnable(Protocol):
    """An image as its starters, modules and tests see it; a `Manifest` is one."""

    @property
    def name(self) -> str:
        """With `version` the image's label."""

    @property
    def version(self) -> str:
        """See `name`."""

    @property
    def summary(self) -> str:
        """One line for people."""

    @property
    def digest(self) -> str:
        """``sha256:…``, the image's identity."""

    @property
    def architecture(self) -> str:
        """In Debian's words (``amd64``)."""

    @property
    def accelerator(self) -> str:
        """``cpu``, or the accelerator that it is for."""

    @property
    def environment(self) -> tuple[Variable, ...]:
        """Variables that it is known to set."""

    @property
    def locale(self) -> str:
        """The locale that starters set; empty if the image sets one, or has that of its user."""

    @property
    def base(self) -> str:
        """Name of its base image."""

    @property
    def glibc(self) -> str:
        """Version of its C library."""

    @property
    def python(self) -> str:
        """Version of its Python."""

    @property
    def mpi(self) -> str:
        """The MPI recipe, or ``unknown``; empty for none."""

    @property
    def mpi_family(self) -> str:
        """The family of launchers of its MPI; empty for none, or one that is not known."""

    @property
    def recipes(self) -> dict[str, str]:
        """Recipe → version."""

    @property
    def unproven(self) -> tuple[str, ...]:
        """Recipes whose version had no test result when the image was locked."""

    @property
    def imported_layers(self) -> tuple[str, ...]:
        """Names of its layers that come from an untrusted account."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands that may get a wrapper."""

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Modules that conflict with its module."""

    @property
    def rank_words(self) -> tuple[str, ...]:
        """The words before the command of a rank; see `jobs.launchers.rank_words`."""

    @property
    def observer_words(self) -> tuple[str, ...]:
        """The words before the command of a rank that is observed; none in images of other tools."""

    @property
    def imports(self) -> tuple[str, ...]:
        """Further Python modules that must import."""

    @property
    def tutorials(self) -> tuple[str, ...]:
        """Recipes whose tutorial must run."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that test it."""

    @property
    def ranks(self) -> int:
        """Processes of a test, unless the user says otherwise (count)."""

    @property
    def timeout_s(self) -> float:
        """Limit of each job, unless the user says otherwise."""


class DescribedImage(Model):
    """An image of another tool, with what is known of it."""

    name: Name
    version: ReleaseVersion
    summary: Text
    digest: Digest
    architecture: Name
    base: str
    glibc: Annotated[str, full_match(r"([0-9]+\.[0-9]+)?", "a version of glibc")]
    python: Annotated[str, full_match(r"([23]\.[0-9]+)?", "a version of Python")]
    accelerator: Name
    mpi: Name | Literal[""] = "unknown"
    mpi_family: Name | Literal[""] = ""
    jobs: tuple[StoredJob, ...] = ()
    environment: tuple[Variable, ...] = ()
    locale: str = ""
    recipes: dict[str, str] = {}
    unproven: tuple[str, ...] = ()
    imported_layers: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    rank_words: tuple[str, ...] = ()
    observer_words: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    tutorials: tuple[str, ...] = ()
    ranks: int = 2
    timeout_s: float = 300


def describe(
    image: ImageFile, digest: str, *, name: str | None = None, version: str | None = None
) -> DescribedImage:
    """Return what is known of an image of another tool to which packages were added.

    Without `name` and `version` they come from the file's name and the image's labels. RequestError: nothing
    was added for a Python, or no name can be made.
    """
    note, path = image.note, image.path
    extensions = note.extensions if note is not None else ()
    last = next((extension for extension in reversed(extensions) if extension.python), None)
    if note is None or last is None:
        raise RequestError(
            f"no Python packages were added to `{path.name}`: a module, `check`, `test` and `launch` are for"
            " those",
            at=Location(path=path),
            hint="`envbuild extend` adds packages; `apptainer exec` runs the image",
        )
    first = extensions[0].image
    try:
        return DescribedImage(
            name=name or re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-"),
            version=version or image.labels.get("org.opencontainers.image.version", "1"),
            summary=f"{first} with {', '.join(sorted(note.packages))}"[:_LONGEST],
            digest=digest,
            architecture=image.architecture,
            base=first if _BASE.fullmatch(first) else "image",
            glibc=last.glibc,
            python=last.python_version,
            accelerator=accelerator_of(image),
            locale=locale_of_starts(image.files),
        )
    except ValidationError as error:
        raise RequestError(
            f"no module can be made of `{path.name}`: {first_problem(error)}",
            at=Location(path=path),
            hint="name it with --name NAME and --version VERSION",
        ) from error


def describe_start(image: ImageFile) -> DescribedImage:
    """Return what is known of an extended image of another tool to start its programs; see `describe`.

    Its MPI is that of its only library of that name; empty without any, and unknown with several. Its data
    are not read.
    """
    paths = image.files.entries
    numbers = {match[1] for path in paths if (match := _MPI_LIBRARY.fullmatch(path))}
    of_12 = "intel-mpi" if any(map(_OF_INTEL_MPI.fullmatch, paths)) else "mpich"
    families = {of_12 if number == "12" else "openmpi" for number in numbers}
    family = families.pop() if len(families) == 1 else ""
    mpi = "unknown" if families else family
    return describe(image, image.tables_digest).model_copy(update={"mpi": mpi, "mpi_family": family})


def own_mpiexec_variables(runnable: Runnable) -> dict[str, str]:
    """Return the variables that starters set so that an image's own mpiexec stays on its host, in a job, too.

    Images of envbuild set them. If its files were not looked at, an image of another tool may have any MPI.
    """
    families: tuple[str, ...] = ()
    if isinstance(runnable, DescribedImage):
        families = _MPI_FAMILIES if runnable.mpi == "unknown" else (runnable.mpi_family,)
    return {name: value for family in families for name, value in on_one_host(family).items()}


def accelerator_of(image: ImageFile) -> str:
    """Return the accelerator that an image is for: by its manifest, or else by the files that it has."""
    if image.built_by_envbuild:
        return image.manifest.accelerator
    for accelerator, pattern in _ACCELERATORS.items():
        if any(pattern.search(path) for path in image.files.entries):
            return accelerator
    return "cpu"


def identity_of(image: ImageFile, store: Store, *, advanced: Callable[[int], None] = lambda _: None) -> str:
    """Return the digest that stands for an image: of its manifest, or of the whole file system.

    That of a file system is computed once, and kept in the store by the file's inode and times. `advanced`
    is called with the number of bytes of each part that is read. RequestError: the image has further
    partitions, for which the file system does not stand.
    """
    if image.built_by_envbuild:
        return image.manifest.digest
    image.check_root_is_alone()
    if known := known_identity(image, store):
        return known
    digest = image.digest_of(image.root.offset, image.root.size_bytes, advanced)
    if image.is_unchanged:
        text = json.dumps({"digest": digest, "signature": image.signature})
        # Without it, the next command reads the image again.
        with suppress(EnvbuildError):
            store.write_sealed(_record_name(image), text)
    return digest


def known_identity(image: ImageFile, store: Store) -> str:
    """Return the result of `identity_of` if that needs no reading of the image; else empty."""
    if image.built_by_envbuild:
        return image.manifest.digest
    text = store.read_sealed(_record_name(image), limit_bytes=_RECORD_BYTES)
    data = json.loads(text) if text is not None else {"signature": None}
    return str(data["digest"]) if data["signature"] == image.signature else ""


def _record_name(image: ImageFile) -> str:
    hexadecimal = sha256_of(json.dumps(image.signature)).removeprefix("sha256:")
    return f"scans/file-systems/{hexadecimal[:2]}/{hexadecimal}.json"


def added_python(image: ImageFile) -> str:
    """Return the Python that packages were added to in an image of another tool; empty for others."""
    return image.note.python if not image.built_by_envbuild and image.note is not None else ""
