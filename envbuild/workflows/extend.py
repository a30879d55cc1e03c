"""Extend: put packages, files and variables on a finished image of any tool."""

from __future__ import annotations

import base64
import contextlib
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from envbuild import __version__
from envbuild.build.sandbox import Sandbox
from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError, pluralize, raise_all
from envbuild.events import Note, Warned, task
from envbuild.extend.judge import judge_addition, packages_for_cuda
from envbuild.extend.packages import (
    Addition,
    PackageRequest,
    fetch_packages,
    read_request,
    resolve_packages,
)
from envbuild.extend.python import choose_python, find_pythons, probe_python
from envbuild.image.compose import check_target
from envbuild.image.conflicts import check_conflicts
from envbuild.image.extension import (
    AddedFile,
    AddedPackage,
    AddedWheel,
    Extension,
    ExtensionNote,
    Requests,
    note_with,
)
from envbuild.image.file import ImageFile, is_image
from envbuild.image.files import ImageFiles
from envbuild.image.runnable import identity_of
from envbuild.image.sif import HINT_REBUILD
from envbuild.lock.model import ToolPin
from envbuild.plan.model import (
    InlineFile,
)
from envbuild.preflight.report import PreflightReport
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import read_machine
from envbuild.spec.model import ImagePath, Text, VariableName, first_problem
from envbuild.spec.reserved import DECISIVE, Reserved, reserved_at, search_path_problem
from envbuild.system.files import read_input, sha256
from envbuild.system.process import thread_pool
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.extend_other import described_files, inline_file, obstructed, request_on, write_other
from envbuild.workflows.extend_own import (
    CONFLICT_HINT,
    OwnImage,
    check_own,
    extend_own,
    other_tools,
    read_own,
    write_own,
)
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.inputs import MAX_FILE_BYTES, site_here
from envbuild.workflows.settings import Settings

_NAMES_SHOWN = 3
_ANOTHER_TARGET = "give each `--file` another target"
# The layer of the files that are added to an image of ours.
_FILES = "files"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRequest:
    """What to add to an image."""

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
    offline: bool = False
    sources: Sequence[Path] = ()
    """Directories that `envbuild fetch` filled."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """An image that was extended, or would be."""

    path: Path
    size_bytes: int
    """Length of the file; 0 of a dry run."""
    note: ExtensionNote
    """All that was added."""
    written: bool
    preflight: PreflightReport | None = None
    """Libraries that the image would load, without the problems of the old one; the file is written whatever
    it shows. None if nothing was written, or no packages were added to an image of another tool."""
    changes: tuple[str, ...] = ()
    """Sentences on what differs from the image that it was made like."""
    taken_over: Requests | None = None
    """Requests of that image that were made again; None without one."""

    @property
    def extension(self) -> Extension:
        """What was added now."""
        return self.note.extensions[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedRequest:
    """A request, checked: what to remember of it, and what it names on this machine."""

    requests: Requests
    packages: PackageRequest
    contents: dict[str, bytes]
    """Target of a file → its content."""
    taken_over: Requests | None = None
    """Those of `requests` that come from another extended image alone."""


def show_extensions(path: Path) -> ExtensionNote | None:
    """Return what was added to an image, None if nothing was; RequestError if it is not an image."""
    with ImageFile.open(path) as image:
        return image.note


def extend_image(request: ExtendRequest, settings: Settings) -> Extended:
    """Write a new image: an old one, whose data is copied as it is, and what was requested."""
    with contextlib.ExitStack() as opened:
        image = opened.enter_context(ImageFile.open(request.image))
        like = opened.enter_context(ImageFile.open(request.like)) if request.like is not None else None
        return _extend(image, like, request, settings)


def _extend(image: ImageFile, like: ImageFile | None, request: ExtendRequest, settings: Settings) -> Extended:
    """Extend an image; a change of an image that is read meanwhile leaves no new one."""
    image.check_extensible()
    before = image.note
    parsed = _read_request(request, like)
    for remark in parsed.packages.remarks:
        settings.emit(Warned(text=remark))
    path = _check_output(request, parsed, settings)
    with settings.store.in_use(), settings.store.stage() as stage:
        files = image.files
        placed = _placed(files, parsed, image)
        own = read_own(image, files, settings.emit) if image.built_by_envbuild else None
        addition, identity = None, ""
        with thread_pool(1) as reading:
            # The image is read as a whole while packages are chosen.
            is_needed = own is None and parsed.packages != PackageRequest() and not request.dry_run
            digest_of_all = reading.submit(identity_of, image, settings.store) if is_needed else None
            if parsed.packages != PackageRequest():
                addition = _choose_packages(image, files, own, parsed, request, settings, stage)
            if digest_of_all is not None:
                identity = digest_of_all.result()
        digest = image.manifest.digest if own is not None else image.tables_digest
        tools = other_tools(own, settings) if own is not None else ()
        extension = _extension(image, parsed, addition, digest, tools)
        note = note_with(before, extension)
        changes = _changes(like, extension) if like is not None else ()
        _check_existing(path, extension)
        extended, described = None, list[InlineFile]()
        if own is not None:
            extended = extend_own(own, files, addition, parsed.requests, placed, settings)
            _check_placed(image, placed, extended.hidden, settings)
        else:
            described = described_files(image, note)
        if request.dry_run:
            return Extended(
                path=path,
                size_bytes=0,
                note=note,
                written=False,
                changes=changes,
                taken_over=parsed.taken_over,
            )

        def check_all() -> None:
            for source in filter(None, (image, like)):
                source.check_unchanged()
            _check_existing(path, extension)  # another command may have written it meanwhile

        preflight = None
        if own is not None and extended is not None:
            preflight = write_own(path, own, extended, note, settings, check=check_all)
        else:
            request_on_image = request_on(image, addition, placed, described, identity)
            preflight = write_other(path, request_on_image, addition, settings, work=stage, check=check_all)
    if image.signatures:
        hint = "`apptainer sign` signs the new image"
        settings.emit(Warned(text="signatures of the old image do not hold for the new one", hint=hint))
    return Extended(
        path=path,
        size_bytes=path.stat().st_size,
        note=note,
        written=True,
        preflight=preflight,
        changes=changes,
        taken_over=parsed.taken_over,
    )


def _check_placed(
    image: ImageFile, placed: Sequence[InlineFile], hidden: Collection[str], settings: Settings
) -> None:
    """Raise a BuildError if the image has something else at the place of a file: no layer need be built."""
    tree = {
        file.path.lstrip("/"): f"f {0o755 if file.executable else 0o644:04o} "
        + sha256_of(base64.b64decode(file.content)).removeprefix("sha256:")
        for file in placed
    }
    check_conflicts(
        {_FILES: tree},
        [*dict.fromkeys((*image.plan.image, _FILES))],
        settings.emit,
        below=image.files,
        owner_of=image.layer_of,
        hidden=hidden,
        hint=CONFLICT_HINT,
    )


def _changes(like: ImageFile, extension: Extension) -> tuple[str, ...]:
    """Say in what the packages that are added differ from those of another extended image."""
    note = like.note
    before = {name: package.version for name, package in (note.packages if note else {}).items()}
    now = {package.name: package.version for package in extension.packages}
    return tuple(
        f"{name} {before.get(name, 'not added')} → {now.get(name, 'not added')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    )


def _choose_packages(
    image: ImageFile,
    files: ImageFiles,
    own: OwnImage | None,
    parsed: _ParsedRequest,
    request: ExtendRequest,
    settings: Settings,
    stage: Path,
) -> Addition:
    """Choose the wheels that the image gains, and fetch them; refuse what would break it."""
    site = site_here(settings)
    with explain_failure("build", settings), settings.store.directory_for_programs("resolve") as cache_dir:
        if own is not None:
            check_own(own, parsed.requests)
            python = own.python
        else:
            named, sandbox = parsed.requests.executable or _python_before(image), _sandbox(image, settings)
            executable = choose_python(files, named, image.path, sandbox.search_path)
            if named is None and len(find_pythons(files)) > 1:
                text = f"packages are added to `{executable}`, the Python on the image's PATH"
                settings.emit(Note(text=f"{text}; `--python-executable PATH` names another"))
            python = probe_python(files, executable, sandbox=sandbox, log=_log(settings), at=image.path)
        packages = parsed.packages
        if request.like is not None:  # the new image need not have all that could change in the old one
            packages = replace(packages, upgrade=packages.upgrade & python.installed.keys())
        if own is not None:
            packages = replace(packages, requirements=(*image.lock.requests, *packages.requirements))
        context = ResolveContext(
            machine=read_machine(),
            cache_dir=cache_dir,
            files=FileCache(settings.store.directory("files")),
            emit=settings.emit,
            offline=request.offline,
            directories=tuple(request.sources),
        )
        work = stage / "resolve"
        work.mkdir()
        with task(settings.emit, "resolve", "resolve Python packages") as running:
            addition = resolve_packages(
                python, packages, image=image.path, site=site, context=context, stage=work
            )
            running.detail = pluralize(len(addition.pins), "wheel")
        judgement = judge_addition(addition, files, at=image.path, emit=settings.emit)
        raise_all(judgement.errors)
        for text in judgement.warnings:
            settings.emit(Warned(text=text))
        cuda = packages_for_cuda(addition)
        if own is not None and image.manifest.accelerator == "cpu" and cuda:
            text = f"{cuda[0]} is for CUDA, and the image for CPUs: `envbuild test` uses no GPU"
            settings.emit(Warned(text=text, hint="build an image with `accelerator: cuda` in its spec"))
        if not request.dry_run:
            fetch_packages(addition, packages, image=image.path, site=site, context=context)
    asked = (text for text in parsed.requests.python if not Requirement(text).extras)
    for text in sorted(set(addition.present).intersection(asked)):
        settings.emit(Note(text=f"`{text}` is met by what the image has"))
    return addition


def _sandbox(image: ImageFile, settings: Settings) -> Sandbox:
    return Sandbox(apptainer=settings.find_apptainer(), root=image.program_path)


def _log(settings: Settings) -> Path:
    return settings.store.directory("logs") / "extend.log"


def _extension(
    image: ImageFile,
    parsed: _ParsedRequest,
    addition: Addition | None,
    digest: str,
    tools: tuple[ToolPin, ...],
) -> Extension:
    """Return what is remembered of a run."""
    replaced = {package.name: package.version for package in addition.replaced} if addition else {}
    named = {wheel.sha256 for wheel in parsed.requests.wheels}
    return Extension(
        image="".join(char if char.isprintable() else "\ufffd" for char in image.path.name),
        digest=digest,
        envbuild=__version__,
        python=addition.python.executable if addition else "",
        python_version=addition.python.version if addition else "",
        glibc=addition.python.glibc if addition else "",
        requests=parsed.requests,
        packages=tuple(
            AddedPackage(
                name=pin.name,
                version=pin.version,
                file=pin.file,
                sha256=pin.sha256,
                origin="file" if pin.sha256 in named else pin.origin,
                replaced=replaced.get(pin.name, ""),
            )
            for pin in (addition.pins if addition else ())
        ),
        tools=tools,
    )


def _read_request(request: ExtendRequest, like: ImageFile | None) -> _ParsedRequest:
    """Check what was asked for, and read the files that are to be added; all errors at once."""
    errors: list[EnvbuildError] = [
        RequestError(
            f"`{text}` is a Debian package, and none is added to a finished image",
            hint="a spec whose base image is this image takes Debian packages (`packages.system`)",
        )
        for text in (*request.python, *map(str, request.wheels))
        if text.endswith(".deb")
    ]
    raise_all(errors)
    packages = PackageRequest()
    try:
        packages = read_request(
            request.python, files=request.requirements, wheels=request.wheels, upgrade=request.upgrade
        )
    except EnvbuildError as error:
        errors += error.each()
    environment = dict(_collect(request.environment, _variable, errors))
    named = list(_collect(request.files, _file, errors))
    errors += _named_twice([target for target, _ in named])
    raise_all(errors)
    files = dict(named)
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
        earlier, held = _requests_of(like, {wheel.file for wheel in requests.wheels})
        taken_over = earlier.without(requests)
        requests, contents = earlier.then(requests), held | contents
        packages = replace(packages, requirements=requests.python, upgrade=frozenset(requests.upgrade))
    if requests == Requests(executable=requests.executable):
        raise RequestError(
            "nothing is requested", hint="`--python NAME` adds a package, `--file SOURCE:/TARGET` a file"
        )
    return _ParsedRequest(requests=requests, packages=packages, contents=contents, taken_over=taken_over)


def _requests_of(image: ImageFile, wheels: Collection[str]) -> tuple[Requests, dict[str, bytes]]:
    """Return what was requested when an image was extended, and the files that it was given.

    `wheels` are the file names of the wheels that are named again.
    """
    path, note = image.path, image.note
    if note is None:
        problem = f"nothing was added to `{path.name}`, so that there is nothing to add again"
        raise RequestError(problem, at=Location(path=path), hint="name an image that `envbuild extend` made")
    requests = note.requests
    raise_all(
        [
            RequestError(
                f"`{path.name}` was given a variable that no image takes over: {problem}",
                at=Location(path=path),
                hint=f"`envbuild extend --show {path.name}` lists what it was given: name the rest again",
            )
            for name, value in requests.environment.items()
            if (problem := search_path_problem(name, value))
        ]
    )
    if lacking := [wheel.file for wheel in requests.wheels if wheel.file not in wheels]:
        raise RequestError(
            f"`{path.name}` was made with wheels that an image does not keep: {', '.join(lacking)}",
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


def _problem(kind: Any, value: str) -> str:  # noqa: ANN401  # an annotated type
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        return first_problem(error)
    return ""


def _python_before(image: ImageFile) -> str | None:
    """Return the Python to which packages were added before; None if there is none."""
    extensions = image.note.extensions if image.note is not None else ()
    return next((extension.python for extension in reversed(extensions) if extension.python), None)


def _check_output(request: ExtendRequest, parsed: _ParsedRequest, settings: Settings) -> Path:
    """Return where the new image goes; refuse the old one's place, and any where nothing can be written."""
    path = request.output or _derived(request.image, parsed)
    keep = (request.image,) if request.like is None else (request.image, request.like)
    check_target(path, keep=keep, is_one=is_image)
    check_outside_store(path, settings.store.path)
    return path


def _derived(image: Path, parsed: _ParsedRequest) -> Path:
    """Return ``pytorch+tabulate.sif`` for `pytorch.sif` and what is put on it."""
    names: list[str] = sorted({canonicalize_name(Requirement(text).name) for text in parsed.requests.python})
    names += [wheel.file.partition("-")[0].lower() for wheel in parsed.requests.wheels]
    names += [name for name in parsed.requests.upgrade if name not in names]
    more = len(names) - _NAMES_SHOWN
    shown = [*names[:_NAMES_SHOWN], *([f"{more}-more"] if more > 0 else [])] or ["files"]
    return image.with_name(f"{'+'.join([image.stem, *shown])}{image.suffix}")


def _check_existing(path: Path, extension: Extension) -> None:
    """Refuse to replace an image, unless it is what the same request has made before."""
    if not path.exists():
        return
    with contextlib.suppress(RequestError), ImageFile.open(path) as there:
        note = there.note
        made = note.extensions[-1] if note else None
        if made and (made.digest, made.requests) == (extension.digest, extension.requests):
            return
    raise RequestError(
        f"`{path}` exists already, and is another image",
        at=Location(path=path),
        hint="name another file with -o NEW.sif, or remove it",
    )


def _placed(files: ImageFiles, parsed: _ParsedRequest, image: ImageFile) -> list[InlineFile]:
    """Return the files that were asked for, each where the links of the image lead.

    RequestError: one is reserved, itself or by a link, or the image has something else there.
    """
    errors: list[EnvbuildError] = []
    placed = []
    at = Location(path=image.path)
    for entry in parsed.requests.files:
        directory, _, name = entry.target.rpartition("/")
        target = posixpath.join(files.place(directory or "/"), name)
        if reserved := _reserved(files, (entry.target, target), ours=image.built_by_envbuild):
            problem = f"a file may not go to `{entry.target}`: {reserved.tree} is reserved"
            errors.append(RequestError(problem, at=at, hint=reserved.why))
        elif error := obstructed(target, files, image.path):
            errors.append(error)
        else:
            placed.append(inline_file(target, parsed.contents[entry.target], executable=entry.executable))
    targets = [file.path for file in placed]
    raise_all([*errors, *_named_twice(targets), *_nested(targets)])
    return placed


def _named_twice(targets: Sequence[str]) -> list[EnvbuildError]:
    """Return errors for targets that several files have."""
    counts = Counter(targets)
    return [
        RequestError(f"two files have the target `{target}`", hint=_ANOTHER_TARGET)
        for target, count in counts.items()
        if count > 1
    ]


def _nested(targets: Sequence[str]) -> list[EnvbuildError]:
    """Return errors for targets that lie in another as in a directory."""
    return [
        RequestError(f"`{parent}` and `{target}`: one file cannot lie in the other", hint=_ANOTHER_TARGET)
        for target in targets
        for parent in map(str, PurePosixPath(target).parents)
        if parent in targets
    ]


def _reserved(files: ImageFiles, targets: Sequence[str], *, ours: bool) -> Reserved | None:
    """Return the reserved tree that one of the targets is in, by itself or by a link of the image."""
    for target in targets:
        if reserved := reserved_at(target, ours=ours):
            return reserved
        for tree in DECISIVE:
            if PurePosixPath(target).is_relative_to(files.place(tree)):
                return reserved_at(tree)
    return None
