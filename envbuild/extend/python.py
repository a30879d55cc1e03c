"""Find the Pythons of an image, and what is installed for one of them.

Sources: PEP 405 (virtual environments), `site` of CPython and of Debian, PEP 376 and 627 (records of
installed files).
"""

from __future__ import annotations

import contextlib
import csv
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from envbuild.build.sandbox import ANSWER_BYTES, MEMORY_BYTES, Sandbox
from envbuild.errors import Location, RequestError
from envbuild.image.files import ImageFiles
from envbuild.preflight.distributions import (
    METADATA,
    MetadataFiles,
    TooMuchMetadataError,
    read_distributions,
)
from envbuild.preflight.python_packages import SEES_BASE
from envbuild.spec.python_platform import MACHINES, PythonTarget

_MAX_TEXT_BYTES = 1 << 20
_MAX_RECORD_BYTES = 32 << 20
_MAX_RECORD_LINES = 500_000
_MAX_ANSWER = 256 << 10
_MAX_DIRECTORIES = 1000
_MAX_CONDA_BYTES = 8 << 20
_TIMEOUT_S = 60
_SHOWN = 20
_PROGRAM = re.compile(r"(?:.*/)?bin/python3")
_SITE = re.compile(r"(?P<data>/.*)/lib(?:64)?/python3(?:\.[0-9]+)?/(?:site|dist)-packages")
_CONDA_RECORD = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)-(?P<version>[\w.+!]+)-[\w.+]+\.json")
_WHICH = "`--python-executable PATH` names one"

# Its arguments: the directory of a virtual environment or nothing, and whether that sees its base's packages.
# Without `site`, some versions take a virtual environment for its base.
_PROBE = """\
import json, os, site, subprocess, sys
venv, sees_base = sys.argv[1], sys.argv[2] == "yes"
base = [getattr(sys, "base_prefix", sys.prefix), getattr(sys, "base_exec_prefix", sys.exec_prefix)]
sites = []
if venv:
    sys.prefix = sys.exec_prefix = venv
    sites += site.getsitepackages([venv])
if not venv or sees_base:
    sys.prefix, sys.exec_prefix = base
    sites += site.getsitepackages(base)
# As users start it: with PYTHONPATH, the files that `site` reads, and what these run.
program = "import json, sys; print(json.dumps(sys.path))"
asked = subprocess.run([sys.executable, "-c", program], cwd="/", stdout=subprocess.PIPE)
path = json.loads(asked.stdout.decode().strip().rpartition("\\n")[2]) if asked.returncode == 0 else []
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
print(json.dumps({
    "implementation": getattr(getattr(sys, "implementation", None), "name", ""),
    "version": list(sys.version_info[:3]),
    "flags": getattr(sys, "abiflags", ""),
    "machine": os.uname()[4],
    "libc": libc or "",
    "sites": sites,
    "path": [place for place in path if place.startswith("/") and place.isprintable()],
    "library_path": os.environ.get("LD_LIBRARY_PATH", ""),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledDistribution:
    """A Python distribution of an image."""

    name: str
    """Canonical name."""
    version: str
    """As its metadata has it; it may not follow PEP 440."""
    site: str
    """The directory of packages that holds it."""
    metadata_path: str
    """The file with its name and version."""
    requires: tuple[str, ...] = ()
    """Its requirements as written; they may not follow PEP 508."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonInstallation:
    """A Python of an image."""

    executable: str
    """Absolute path in the image."""
    version: str
    """Two numbers (``3.11``)."""
    abi: str
    """ABI tag (``cp311``)."""
    glibc: str
    """Version of the image's C library (``2.36``)."""
    architecture: str
    """In Debian's words."""
    site_packages: str
    """The directory for further packages, without links."""
    scripts: str
    """The directory for their programs, without links."""
    data: str
    """The directory for their other files (``/usr/local``)."""
    search_path: tuple[str, ...]
    """The directories that it searches for packages, in order: `site_packages` and directories of the image's
    PYTHONPATH, of ``.pth`` files, of Debian, of a virtual environment's base. No link leads there."""
    installed: Mapping[str, InstalledDistribution]
    """Canonical name → the distribution that this Python finds."""
    library_path: tuple[str, ...] = ()
    """LD_LIBRARY_PATH in the image."""

    def is_covered(self, name: str) -> bool:
        """Return whether what is installed hides another version of it in `site_packages`."""
        before = self.search_path[: self.search_path.index(self.site_packages)]
        return name in self.installed and self.installed[name].site in before

    @property
    def target(self) -> PythonTarget:
        """The interpreter for which packages are chosen."""
        return PythonTarget(
            version=self.version, abi=self.abi, glibc=self.glibc, architecture=self.architecture
        )

    @property
    def markers(self) -> dict[str, str]:
        """Its environment markers (PEP 508)."""
        return self.target.environment

    @property
    def scheme(self) -> dict[str, str]:
        """The directories for the parts of a wheel: key of the wheel format → absolute path."""
        return {
            "purelib": self.site_packages,
            "platlib": self.site_packages,
            "scripts": self.scripts,
            "data": self.data,
            "headers": f"{self.data}/include/python{self.version}",
        }


def find_pythons(image: ImageFiles) -> tuple[str, ...]:
    """Return the path of each Python of an image, sorted; two paths of one count once.

    A virtual environment counts as another.
    """
    return tuple(sorted(_pythons_by_file(image).values()))


def _pythons_by_file(image: ImageFiles) -> dict[str, str]:
    """Return the path of each Python of an image, by its virtual environment or else its program."""
    pythons: dict[str, str] = {}
    for path in filter(_PROGRAM.fullmatch, image.entries):
        entry = image.at(path)
        if entry is not None and entry.kind == "file" and path.isprintable():
            file = _virtual_environment(image, path) or entry.path
            # The name beside the program itself is the plainest.
            if file not in pythons or posixpath.dirname(path) == posixpath.dirname(entry.path):
                pythons[file] = path
    return pythons


def python_on_path(image: ImageFiles, search_path: str) -> str | None:
    """Return the Python that `python3` and `python` start; None if there is none, or they start two."""
    pythons = _pythons_by_file(image)
    started = set()
    for name in ("python3", "python"):
        for directory in search_path.split(":"):
            path = f"{directory}/{name}"
            entry = image.at(path) if path.startswith("/") else None
            if entry is not None and entry.kind == "file" and entry.mode & 0o111:
                started.add(pythons.get(_virtual_environment(image, path) or entry.path))
                break
    started.discard(None)
    return started.pop() if len(started) == 1 else None


def choose_python(image: ImageFiles, requested: str | None, at: Path, search_path: Callable[[], str]) -> str:
    """Return the path of the Python to add packages for: the named one, the only one, or the one on PATH.

    `at` is the image's file, for messages; `search_path` returns the image's PATH. RequestError: there is
    none, or several and PATH does not decide.
    """
    pythons = find_pythons(image)
    shown = "".join(f"\n  {path}" for path in pythons[:_SHOWN])
    if requested is not None:
        entry = image.at(requested)
        if not requested.startswith("/") or entry is None or entry.kind != "file":
            problem = f"the image has no program `{requested}`"
            hint = f"it has these Pythons:{shown}" if pythons else "it has no Python: only files can be added"
            raise RequestError(problem, at=Location(path=at), hint=hint)
        return posixpath.normpath(requested)
    if not pythons:
        hint = f"{_WHICH} elsewhere than `bin/python3`; files and variables can be added without one"
        raise RequestError("the image has no Python", at=Location(path=at), hint=hint)
    if len(pythons) > 1:
        if (chosen := python_on_path(image, search_path())) is not None:
            return chosen
        problem = f"the image has several Pythons, and its PATH does not choose one:{shown}"
        raise RequestError(problem, at=Location(path=at), hint=_WHICH)
    return pythons[0]


def probe_python(
    image: ImageFiles, executable: str, *, sandbox: Sandbox, log: Path, at: Path
) -> PythonInstallation:
    """Start a Python once, without its packages, and read what is installed for it.

    The root of `sandbox` is the image. BuildError: it does not start. RequestError: packages cannot be added
    for it (another implementation, too old, without glibc), or it answers as no Python would.
    """
    venv = _virtual_environment(image, executable)
    settings = image.read(f"{venv}/pyvenv.cfg", _MAX_TEXT_BYTES) if venv else None
    sees_base = "yes" if SEES_BASE.search(settings or "") else "no"
    finished = sandbox.run(
        [executable, "-I", "-S", "-c", _PROBE, venv, sees_base],
        binds=(),
        env={},
        log=log,
        what=f"`{executable}` of `{at.name}` does not start",
        timeout_s=_TIMEOUT_S,
        most_bytes=ANSWER_BYTES,
        memory_bytes=MEMORY_BYTES,
    )
    answer = _read_answer(finished.stdout, executable, at)
    own = image.target_path(answer.sites[0])
    match = _SITE.fullmatch(own)
    if match is None:
        problem = f"`{executable}` looks for packages in `{own}`, which is not a directory for packages"
        raise RequestError(problem, at=Location(path=at), hint=_WHICH)
    sites = list(dict.fromkeys(map(image.target_path, answer.sites)))
    search_path = _search_path(list(dict.fromkeys(map(image.target_path, answer.path))), sites)
    installed = installed_distributions(image, search_path)
    return PythonInstallation(
        executable=executable,
        version=answer.series,
        abi=answer.abi,
        glibc=answer.libc.removeprefix("glibc "),
        architecture=answer.architecture,
        site_packages=own,
        scripts=image.target_path(f"{match['data']}/bin"),
        data=match["data"],
        search_path=tuple(search_path),
        installed={**_of_conda(image, own, match["data"]), **installed},
        library_path=tuple(answer.library_path.split(":")),
    )


def _search_path(path: Sequence[str], sites: Sequence[str]) -> list[str]:
    """Return the directories of `path` and of `sites`, in the order of Python.

    Python leaves out those of `sites`, which it knows by itself, that do not exist yet.
    """
    merged = list(path)
    for index, site in enumerate(sites):
        if site not in merged:
            later = [merged.index(other) for other in sites[index + 1 :] if other in merged]
            merged.insert(min(later, default=len(merged)), site)
    return merged


class _Answer(BaseModel):
    """The answer of a Python about itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    implementation: Annotated[str, StringConstraints(max_length=32)]
    version: Annotated[list[Annotated[int, Field(ge=0, le=999)]], Field(min_length=3, max_length=3)]
    flags: Annotated[str, StringConstraints(pattern=r"^[a-z]{0,4}$")]
    machine: Literal["x86_64", "aarch64"]
    libc: Annotated[str, StringConstraints(pattern=r"^(glibc 2\.[0-9]{1,3})?$")]
    sites: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^/[ -~]{1,1000}$")]],
        Field(min_length=1, max_length=16),
    ]
    path: Annotated[
        list[Annotated[str, StringConstraints(max_length=4096)]],
        Field(min_length=1, max_length=_MAX_DIRECTORIES),
    ]
    library_path: Annotated[str, StringConstraints(pattern=r"^[ -~]{0,4000}$")]

    @property
    def series(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def abi(self) -> str:
        return f"cp{self.version[0]}{self.version[1]}{self.flags}"

    @property
    def architecture(self) -> str:
        return next(name for name, machine in MACHINES.items() if machine == self.machine)


def _read_answer(text: str, executable: str, at: Path) -> _Answer:
    try:
        # What an image prints as it starts comes before.
        answer = _Answer.model_validate(json.loads(text[-_MAX_ANSWER:].strip().rpartition("\n")[2]))
    except (ValueError, ValidationError, RecursionError) as error:
        problem = f"`{executable}` of `{at.name}` does not answer as a Python would"
        raise RequestError(problem, at=Location(path=at), hint=_WHICH) from error
    reason = ""
    if answer.implementation != "cpython" or answer.version[0] != 3 or answer.version[1] < 7:
        reason = f"is {answer.implementation or 'Python'} {answer.series}, and CPython 3.7 or newer is needed"
    elif answer.flags.strip("m"):
        reason = f"is a special build of CPython (`{answer.flags}`), for which few wheels are made"
    elif not answer.libc:
        reason = "has another C library than glibc, for which few wheels are made"
    if reason:
        hint = f"{_WHICH}; an image that is built from a spec can have any base"
        raise RequestError(f"`{executable}` {reason}", at=Location(path=at), hint=hint)
    return answer


def _virtual_environment(image: ImageFiles, executable: str) -> str:
    """Return the directory of the virtual environment that a program belongs to; empty without one."""
    directory = posixpath.dirname(posixpath.dirname(executable))
    return directory if image.at(f"{directory}/pyvenv.cfg") is not None else ""


def installed_distributions(image: ImageFiles, sites: Sequence[str]) -> dict[str, InstalledDistribution]:
    """Return what lies in directories of packages; of two of one name the first counts, as for Python.

    SquashfsError: there is far too much of it.
    """
    metadata = MetadataFiles()
    sites_of: dict[str, str] = {}
    try:
        for site in dict.fromkeys(sites):
            for path in _metadata_files(image, site):
                text = image.read(path, _MAX_TEXT_BYTES)
                if text is not None:
                    metadata.add(path, text)
                    sites_of[path] = site
        distributions = read_distributions(metadata.texts)
    except TooMuchMetadataError as error:
        raise image.error(str(error)) from error
    order = {site: rank for rank, site in enumerate(dict.fromkeys(sites))}
    installed: dict[str, InstalledDistribution] = {}
    for path in sorted(distributions, key=lambda path: (order[sites_of[path]], path)):
        distribution = distributions[path]
        name = canonicalize_name(distribution.name)
        installed.setdefault(
            name,
            InstalledDistribution(
                name=name,
                version=distribution.version,
                site=sites_of[path],
                metadata_path=path,
                requires=distribution.requires,
            ),
        )
    return installed


def _of_conda(image: ImageFiles, site: str, prefix: str) -> dict[str, InstalledDistribution]:
    """Return the Python packages that only conda's own records name, by canonical name."""
    installed: dict[str, InstalledDistribution] = {}
    for path in image.below(f"{prefix}/conda-meta"):
        match = _CONDA_RECORD.fullmatch(posixpath.basename(path))
        text = image.read(path, _MAX_CONDA_BYTES) if match else None
        if match is None or text is None:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            files = [image.target_path(posixpath.join(prefix, file)) for file in json.loads(text)["files"]]
            if any(file.startswith(f"{site}/") for file in files):
                name = canonicalize_name(match["name"])
                installed[name] = InstalledDistribution(
                    name=name, version=match["version"], site=site, metadata_path=path
                )
    return installed


def _metadata_files(image: ImageFiles, site: str) -> Iterator[str]:
    for path in image.below(site):
        files = ("METADATA",) if path.endswith(".dist-info") else ("PKG-INFO", "requires.txt")
        candidates = (path, *(f"{path}/{file}" for file in files))
        yield from (candidate for candidate in candidates if METADATA.fullmatch(candidate))


def owned_files(image: ImageFiles, package: InstalledDistribution) -> tuple[str, ...]:
    """Return the existing files of a distribution, with their bytecode; none if nothing lists them.

    Links on the way to a file are not followed, and files outside of the installation are not its own.
    """
    directory = posixpath.dirname(package.metadata_path)
    listed: list[str] = []
    site = _SITE.fullmatch(package.site)
    if directory == package.site or site is None:
        return ()
    if (lines := _lines(image, f"{directory}/RECORD")) is not None:
        with contextlib.suppress(csv.Error):
            listed = [posixpath.join(package.site, row[0]) for row in csv.reader(lines) if row]
    elif (lines := _lines(image, f"{directory}/installed-files.txt")) is not None:
        listed = [posixpath.join(directory, line) for line in lines]
    if listed:
        listed += image.below(directory)
    prefix = f"{site['data']}/"
    return tuple(path for path in sorted(_existing(image, listed)) if path.startswith(prefix))


def _lines(image: ImageFiles, path: str) -> list[str] | None:
    """Return the lines of a list of files; None if there is none, none if it is too long to be one."""
    text = image.read(path, _MAX_RECORD_BYTES)
    if text is None:
        return None
    return text.splitlines() if text.count("\n") <= _MAX_RECORD_LINES else []


def files_and_directories(image: ImageFiles, packages: Iterable[InstalledDistribution], top: str) -> set[str]:
    """Return the files of distributions, and the directories below `top` that hold nothing else."""
    paths = {path for package in packages for path in owned_files(image, package)}
    directories = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    for directory in sorted(directories, key=len, reverse=True):
        if directory.startswith(f"{top}/") and paths.issuperset(image.below(directory)):
            paths.add(directory)
    return paths


def _existing(image: ImageFiles, paths: Sequence[str]) -> set[str]:
    existing = set()
    modules: dict[str, set[str]] = {}  # directory → beginnings of the names of bytecode
    for path in set(map(posixpath.normpath, paths)):
        entry = image.entries.get(path)
        if entry is None or entry.kind == "directory":
            continue
        existing.add(path)
        directory, name = posixpath.split(path)
        if name.endswith(".py"):
            modules.setdefault(directory, set()).add(name[:-2])
    for directory, beginnings in modules.items():
        for path in image.below(f"{directory}/__pycache__"):
            name = posixpath.basename(path)
            dots = (index for index, character in enumerate(name, 1) if character == ".")
            if any(name[:index] in beginnings for index in dots):
                existing.add(path)
    return existing
