"""A request to extend an image: checked, merged with that of another image, and as it is remembered."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from pydantic import ValidationError

from envbuild import __version__
from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError, did_you_mean, raise_all
from envbuild.extend.packages import Addition, PackageRequest, read_request
from envbuild.image.extension import AddedFile, AddedPackage, AddedWheel, Extension, Requests
from envbuild.image.file import ImageFile
from envbuild.image.files import ImageFiles
from envbuild.image.sif import HINT_REBUILD
from envbuild.inputs.spec import MAX_FILE_BYTES
from envbuild.lock.model import ToolPin
from envbuild.quoting import shell_path, shell_quote
from envbuild.spec.model import ImagePath, Text, VariableName, first_problem
from envbuild.spec.reserved import search_path_problem
from envbuild.spec.validators import validator
from envbuild.system.files import read_input, sha256

_NAMES_SHOWN = 3
HINT_ANOTHER_TARGET = "give each `--file` another target"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRequest:
    """Additions to an image, as a command line names them."""

    image: Path
    output: Path | None = None
    """The image to write; beside the old one, under a derived name, if absent."""
    python: Sequence[str] = ()
    """PEP 508."""
    requirements: Sequence[Path] = ()
    """Requirements files."""
    wheels: Sequence[Path] = ()
    upgrade: Sequence[str] = ()
    """Names of installed distributions that may change."""
    executable: str | None = None
    """The Python to add packages to; the only one of the image, or the one on its PATH, if absent."""
    files: Sequence[str] = ()
    """``SOURCE:TARGET``."""
    environment: Sequence[str] = ()
    """``NAME=VALUE``."""
    like: Path | None = None
    """An extended image whose requests are made again."""
    without: Sequence[str] = ()
    """Names of packages, files and variables that are not taken over from that image."""
    offline: bool = False
    sources: Sequence[Path] = ()
    """Directories that `envbuild fetch` filled."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request, checked: what to remember of it, and what it names on this machine."""

    requests: Requests
    packages: PackageRequest
    contents: dict[str, bytes]
    """Target of a file → its content."""
    taken_over: Requests | None = None
    """Those of `requests` that come from another extended image alone."""


def package_changes(like: ImageFile, extension: Extension) -> tuple[str, ...]:
    """Return sentences on the packages that differ from those added to another image."""
    note = like.note
    before = {name: package.version for name, package in (note.packages if note else {}).items()}
    now = {package.name: package.version for package in extension.packages}
    return tuple(
        f"{name} {before.get(name, 'not added')} → {now.get(name, 'not added')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    )


def extension_of(
    image: ImageFile,
    checked: CheckedRequest,
    addition: Addition | None,
    tools: tuple[ToolPin, ...],
) -> Extension:
    """Return what is remembered of a run."""
    replaced = {package.name: package.version for package in addition.replaced} if addition else {}
    named_digests = {wheel.sha256 for wheel in checked.requests.wheels}
    return Extension(
        image="".join(char if char.isprintable() else "\ufffd" for char in image.path.name),
        digest=image.manifest.digest if image.built_by_envbuild else image.tables_digest,
        envbuild=__version__,
        python=addition.python.executable if addition else "",
        python_version=addition.python.version if addition else "",
        glibc=addition.python.glibc if addition else "",
        requests=checked.requests,
        packages=tuple(
            AddedPackage(
                name=pin.name,
                version=pin.version,
                file=pin.file,
                sha256=pin.sha256,
                origin="file" if pin.sha256 in named_digests else pin.origin,
                replaced=replaced.get(pin.name, ""),
            )
            for pin in (addition.pins if addition else ())
        ),
        tools=tools,
    )


def check_request(request: ExtendRequest, like: ImageFile | None) -> CheckedRequest:
    """Check a request, and read the files to add; all errors at once."""
    errors: list[EnvbuildError] = [
        RequestError(
            f"Debian packages cannot be added to a finished image: `{text}`",
            hint="a spec whose base image is this image takes Debian packages (`packages.system`)",
        )
        for text in (*request.python, *map(str, request.wheels))
        if text.endswith(".deb")
    ]
    errors += [
        RequestError(f"`{text}` is a file, not a package", hint=hint)
        for text in request.python
        if (hint := _file_hint(text))
    ]
    if request.without and like is None:
        errors.append(
            RequestError(
                "`--without` leaves out what `--like` would add again",
                hint=f"`envbuild extend BASE.sif --like {shell_path(request.image)} --without"
                f" {shell_quote(request.without[0])}` adds the rest again to the image below",
            )
        )
    raise_all(errors)
    packages = PackageRequest()
    try:
        packages = read_request(
            request.python, files=request.requirements, wheels=request.wheels, upgrade=request.upgrade
        )
    except EnvbuildError as error:
        errors += error.each()
    environment = dict(_collect(request.environment, _variable, errors))
    added = list(_collect(request.files, _file, errors))
    errors += duplicate_targets([target for target, _ in added])
    raise_all(errors)
    files = dict(added)
    requests = Requests(
        python=packages.requirements,
        wheels=tuple(AddedWheel(file=wheel.name, sha256=sha256(wheel)) for wheel in packages.wheels),
        upgrade=tuple(sorted(packages.upgrade)),
        executable=request.executable or "",
        environment=environment,
        files=tuple(file for file, _ in files.values()),
    )
    contents = {target: content for target, (_, content) in files.items()}
    taken_over = None
    if like is not None:
        earlier, kept_contents = _requests_of(
            like, {wheel.file for wheel in requests.wheels}, without=request.without
        )
        taken_over = earlier.without(requests)
        requests, contents = earlier.then(requests), kept_contents | contents
        packages = replace(packages, requirements=requests.python, upgrade=frozenset(requests.upgrade))
    nothing = requests == Requests(executable=requests.executable)
    if nothing and like is not None and request.without:
        raise RequestError(
            f"`--without` leaves out all that was added to `{like.path.name}`",
            hint=f"the image without it is `{shell_path(request.image)}` as it is",
        )
    if nothing:
        raise RequestError(
            "nothing is requested", hint="`--python NAME` adds a package, `--file SOURCE:/TARGET` a file"
        )
    return CheckedRequest(requests=requests, packages=packages, contents=contents, taken_over=taken_over)


def _requests_of(
    image: ImageFile, wheels: Collection[str], *, without: Sequence[str]
) -> tuple[Requests, dict[str, bytes]]:
    """Return what was requested when an image was extended, and the files that it was given.

    `wheels` are the file names of the wheels that are named again. Requests `without` a name are left out;
    RequestError if one was not requested.
    """
    path, note = image.path, image.note
    if note is None:
        problem = f"`{path.name}` was not extended: `--like` needs an extended image"
        raise RequestError(problem, at=Location(path=path), hint="name an image that `envbuild extend` made")
    requests = note.requests
    for name in without:
        requests = _without(requests, name, path)
    raise_all(
        [
            RequestError(
                f"`{path.name}` has a variable that cannot be added again: {problem}",
                at=Location(path=path),
                hint=f"`envbuild extend --show {path.name}` lists what it was given: name the rest again",
            )
            for name, value in requests.environment.items()
            if (problem := search_path_problem(name, value))
        ]
    )
    if missing := [wheel.file for wheel in requests.wheels if wheel.file not in wheels]:
        raise RequestError(
            f"`{path.name}` was made with wheels that an image does not keep: {', '.join(missing)}",
            at=Location(path=path),
            hint="name each again with --wheel FILE",
        )
    files = ImageFiles(image.root)
    contents = {
        file.target: files.content(entry, MAX_FILE_BYTES)
        for file in requests.files
        if (entry := files.at(file.target)) is not None and entry.kind == "file"
    }
    for file in requests.files:
        if sha256_of(contents.get(file.target, b"")) != f"sha256:{file.sha256}":
            problem = f"`{path.name}` does not hold `{file.target}` as it was added"
            raise RequestError(problem, at=Location(path=path), hint=HINT_REBUILD)
    return requests, contents


def _without(requests: Requests, name: str, path: Path) -> Requests:
    """Return requests without a package, file or variable; RequestError if it was not requested."""
    names = {
        **{text: canonicalize_name(Requirement(text).name) for text in requests.python},
        **{wheel.file: parse_wheel_filename(wheel.file)[0] for wheel in requests.wheels},
        **{file.target: file.target for file in requests.files},
        **{variable: variable for variable in requests.environment},
    }
    left_out = {
        text for text, known in names.items() if name in (text, known) or canonicalize_name(name) == known
    }
    if not left_out:
        raise RequestError(
            f"`{name}` was not requested for `{path.name}`",
            at=Location(path=path),
            hint=did_you_mean(name, list(names.values())) or f"requested: {', '.join(names.values())}",
        )
    canonical = {names[text] for text in left_out}
    return requests.model_copy(
        update={
            "python": tuple(text for text in requests.python if text not in left_out),
            "wheels": tuple(wheel for wheel in requests.wheels if wheel.file not in left_out),
            "upgrade": tuple(text for text in requests.upgrade if text not in canonical),
            "environment": {
                variable: value
                for variable, value in requests.environment.items()
                if variable not in left_out
            },
            "files": tuple(file for file in requests.files if file.target not in left_out),
        }
    )


def _collect(texts: Sequence[str], read: Callable[[str], T], errors: list[EnvbuildError]) -> Iterator[T]:
    """Yield what `read` returns of each text; keep the errors that it raises instead."""
    for text in texts:
        try:
            yield read(text)
        except EnvbuildError as error:
            errors += error.each()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    problem = _problem(VariableName, name) or _problem(Text, value) if equals else "it has no `=`"
    if problem:
        raise RequestError(f"--env {text}: {problem}", hint="write --env NAME=VALUE")
    if problem := search_path_problem(name, value):
        hint = "leave it out; a spec adds a directory with `{prepend: …}`"
        raise RequestError(f"--env {text}: {problem}", hint=hint)
    return name, value


def _file(text: str) -> tuple[str, tuple[AddedFile, bytes]]:
    source, _, target = text.rpartition(":")
    problem = _problem(ImagePath, target) if source else "it has no `:`"
    if problem:
        raise RequestError(f"--file {text}: {problem}", hint="write --file SOURCE:/TARGET")
    content = read_input(Path(source), limit_bytes=MAX_FILE_BYTES)
    digest = sha256_of(content).removeprefix("sha256:")
    return target, (AddedFile(target=target, sha256=digest, executable=os.access(source, os.X_OK)), content)


def _file_hint(text: str) -> str:
    """Return how a file is named that was written as a package; empty for a package."""
    if text.endswith(".whl"):
        return f"`--wheel {shell_quote(text)}` adds it"
    if text.endswith((".txt", ".in", ".toml")):
        return f"`-r {shell_quote(text)}` adds what it lists"
    return ""


def duplicate_targets(targets: Sequence[str]) -> list[EnvbuildError]:
    """Return errors for targets that several files have."""
    counts = Counter(targets)
    return [
        RequestError(f"two files have the target `{target}`", hint=HINT_ANOTHER_TARGET)
        for target, count in counts.items()
        if count > 1
    ]


def _problem(kind: Any, value: str) -> str:  # noqa: ANN401  # an annotated type
    try:
        validator(kind).validate_python(value)
    except ValidationError as error:
        return first_problem(error)
    return ""


def derived_path(image: Path, checked: CheckedRequest) -> Path:
    """Return ``pytorch+tabulate.sif`` for `pytorch.sif` and what is put on it."""
    names: list[str] = sorted({canonicalize_name(Requirement(text).name) for text in checked.requests.python})
    names += [wheel.file.partition("-")[0].lower() for wheel in checked.requests.wheels]
    names += [name for name in checked.requests.upgrade if name not in names]
    more = len(names) - _NAMES_SHOWN
    shown = [*names[:_NAMES_SHOWN], *([f"{more}-more"] if more > 0 else [])] or ["files"]
    return image.with_name(f"{'+'.join([image.stem, *shown])}{image.suffix}")
