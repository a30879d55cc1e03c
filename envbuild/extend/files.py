"""The files that an image gains: the requested ones at their targets, and the record of what was added."""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.events import Emit
from envbuild.extend.request import HINT_ANOTHER_TARGET, CheckedRequest, duplicate_targets
from envbuild.image import startup
from envbuild.image.conflicts import check_conflicts
from envbuild.image.environment import render_enroot, render_script, render_table
from envbuild.image.extension import NOTE_PATH, ExtensionNote
from envbuild.image.file import ImageFile
from envbuild.image.files import ImageFiles
from envbuild.image.locales import has_locale
from envbuild.image.model import Variable
from envbuild.plan.model import InlineFile
from envbuild.spec import locales
from envbuild.spec.reserved import DECISIVE, Reserved, reserved_at

CONFLICT_HINT = "each path has one owner: ask for another package or target"
"""How to resolve a conflict with what an image has."""

# The layer of the files that are added to an image that envbuild built.
_FILES = "files"
_ENVIRONMENT = f"{startup.DIRECTORY}/env/92-envbuild.sh"
# Charliecloud and enroot, which start a bare squashfs, read variables from these.
_TABLES = {startup.CHARLIECLOUD: render_table, startup.ENROOT: render_enroot}
_MAX_TABLE_BYTES = 1 << 20


def check_locales(request: CheckedRequest, image: ImageFile) -> None:
    """Raise a RequestError if a variable names a locale that an image lacks."""
    raise_all(
        [
            RequestError(
                f"--env {name}={value}: `{image.path.name}` has no locale `{locale}`",
                hint=f"write {name}={locales.DEFAULT}",
            )
            for name, value in request.requests.environment.items()
            if (locale := locales.missing_locale(name, value)) and not has_locale(image.files, locale)
        ]
    )


def described_files(image: ImageFile, note: ExtensionNote) -> list[InlineFile]:
    """Return the files that record what was added to an image, and set its variables.

    RequestError: it has a directory in the place of one.
    """
    described = list(_note_files(image, note))
    raise_all([*filter(None, (obstruction(file.path, image.files, image.path) for file in described))])
    return described


def obstruction(target: str, files: ImageFiles, image: Path) -> RequestError | None:
    """Return the error if an image has a directory at the target of a file, or another file above it."""
    parents = map(str, reversed(PurePosixPath(target).parents))
    for parent in parents:
        entry = files.entries.get(parent)
        if entry is not None and entry.kind != "directory":
            problem = f"`{parent}` is not a directory in `{image.name}`, and `{target}` lies below it"
            return RequestError(problem, at=Location(path=image), hint="name another target or image")
    if (entry := files.entries.get(target)) is not None and entry.kind == "directory":
        problem = f"`{target}` is a directory in `{image.name}`"
        return RequestError(problem, at=Location(path=image), hint=f"write {target}/NAME")
    return None


def _note_files(image: ImageFile, note: ExtensionNote) -> Iterator[InlineFile]:
    files = image.files
    yield inline_file(NOTE_PATH, note.to_json().encode())
    environment = note.requests.environment
    if not environment:
        return
    variables = [Variable(name=name, operation="set", value=value) for name, value in environment.items()]
    yield inline_file(_ENVIRONMENT, render_script(variables).encode(), executable=True)
    if files.at(startup.DIRECTORY) is None:
        # Apptainer starts an image that has some of its files as if it had all.
        for file, (text, mode) in startup.base_files().items():
            yield inline_file(file, text.encode(), executable=bool(mode & 0o100))
    for table, render in _TABLES.items() if image.sif is None else ():
        text_before = files.read(table, _MAX_TABLE_BYTES)
        if text_before is not None and (path := files.real(table)) is not None:
            others = [line for line in text_before.splitlines() if line.partition("=")[0] not in environment]
            ours = [line for line in render(variables).splitlines() if line.partition("=")[0] in environment]
            yield inline_file(path, "".join(f"{line}\n" for line in (*others, *ours)).encode())


def inline_file(path: str, content: bytes, *, executable: bool = False) -> InlineFile:
    """Return a file that envbuild writes."""
    return InlineFile(path=path, content=base64.b64encode(content).decode(), executable=executable)


def check_placed(image: ImageFile, placed: Sequence[InlineFile], hidden: Collection[str], emit: Emit) -> None:
    """Raise a BuildError if the image has something else at the path of a file, before anything is built."""
    tree = {
        file.path.lstrip("/"): f"f {0o755 if file.executable else 0o644:04o} "
        + sha256_of(base64.b64decode(file.content)).removeprefix("sha256:")
        for file in placed
    }
    check_conflicts(
        {_FILES: tree},
        [*dict.fromkeys((*image.plan.image, _FILES))],
        emit,
        below=image.files,
        owner_of=image.layer_of,
        hidden=hidden,
        hint=CONFLICT_HINT,
    )


def placed_files(request: CheckedRequest, image: ImageFile) -> list[InlineFile]:
    """Return the requested files, each where the links of the image lead.

    RequestError: a target is reserved, itself or by a link, or the image has a directory there.
    """
    files = image.files
    errors: list[EnvbuildError] = []
    placed = []
    at = Location(path=image.path)
    for entry in request.requests.files:
        directory, _, name = entry.target.rpartition("/")
        target = posixpath.join(files.target_path(directory or "/"), name)
        if reserved := _reserved(files, (entry.target, target), ours=image.built_by_envbuild):
            problem = f"a file may not go to `{entry.target}`: {reserved.tree} is reserved"
            errors.append(RequestError(problem, at=at, hint=reserved.why))
        elif error := obstruction(target, files, image.path):
            errors.append(error)
        else:
            placed.append(inline_file(target, request.contents[entry.target], executable=entry.executable))
    targets = [file.path for file in placed]
    raise_all([*errors, *duplicate_targets(targets), *_nested(targets)])
    return placed


def _nested(targets: Sequence[str]) -> list[EnvbuildError]:
    """Return errors for targets that lie in another as in a directory."""
    return [
        RequestError(f"`{parent}` and `{target}`: one file cannot lie in the other", hint=HINT_ANOTHER_TARGET)
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
            if PurePosixPath(target).is_relative_to(files.target_path(tree)):
                return reserved_at(tree)
    return None
