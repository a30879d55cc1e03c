"""Checks before an image is installed as a module."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from envbuild.activate.layout import IMAGE, read_record
from envbuild.activate.model import Installation
from envbuild.activate.modulefile import visible
from envbuild.errors import CheckError, Location, RequestError, raise_all
from envbuild.events import Emit, Warned
from envbuild.image.file import ImageFile
from envbuild.image.runnable import Runnable
from envbuild.quoting import shell_path
from envbuild.spec.model import CommandName, first_problem
from envbuild.spec.validators import validator
from envbuild.store import verdicts
from envbuild.store.verdicts import TestVerdict
from envbuild.system import host
from envbuild.system.privacy import parents_others_can_write


def command_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Return names of commands without repeats; RequestError if one is not a name."""
    for text in texts:
        try:
            validator(CommandName).validate_python(text)
        except ValidationError as error:
            hint = "name a program of the image, without directories"
            raise RequestError(f"--command: {first_problem(error)}", hint=hint) from None
    return tuple(dict.fromkeys(texts))


def check_verdict(
    image: Path, runnable: Runnable, verdict: TestVerdict | None, *, require_pass: bool, require_gpu: bool
) -> None:
    """Raise a CheckError if a verdict is required that the image does not have."""
    required = "--require-gpu" if require_gpu else "--require-pass" if require_pass else ""
    if require_gpu and runnable.accelerator == "cpu":
        problem = f"--require-gpu: `{image}` is an image for CPUs"
        raise CheckError(problem, hint="`accelerator: cuda` in the spec builds one for GPUs")
    if required and (verdict is None or verdict.state != "passed"):
        tested = visible(verdicts.sentence(verdict))
        raise CheckError(
            f"{required}: `{image}` has no test that passed on this host: {tested}",
            hint=f"{_hint_to_test(verdict)}, then install it again",
        )


def _hint_to_test(verdict: TestVerdict | None) -> str:
    if verdict is not None and verdict.state == "cpu-only":
        return "`envbuild test` it where there is a GPU, or from here with `--nodes 1`"
    if verdict is not None and verdict.state == "failed":
        return "`envbuild test` shows what failed: correct that, and test the new image"
    return "`envbuild test` it on this host"


def check_not_replaced(installation: Installation) -> None:
    """Raise a RequestError for a module's copy that is another image than the one it was made from."""
    image = installation.image
    record = read_record(image.parent) if image.name == IMAGE else None
    if record is not None and not record.image and record.digest != installation.runnable.digest:
        raise RequestError(
            f"this is another image than the module {record.name}/{record.version} was made from",
            at=Location(path=image),
            hint="install the module again from its own image",
        )


def check_replaces_its_kind(installation: Installation) -> None:
    """Raise a RequestError if an extended image would replace one that is not extended.

    Both have the same name and version unless the user gives others.
    """
    layout = installation.layout
    release = layout.in_use
    record = read_record(release) if release is not None else None
    if (
        record is None
        or record.digest == installation.runnable.digest
        or not _is_extended(installation.image)
    ):
        return
    if not _is_extended(Path(record.image) if record.image else layout.home / IMAGE):
        raise RequestError(
            f"`{installation.image.name}` was extended, and the module {layout.label} has another image",
            at=Location(path=layout.modulefile),
            hint=f"another `--version` installs it beside that; `--version {layout.version}` replaces it",
        )


def _is_extended(path: Path) -> bool:
    with suppress(RequestError), ImageFile.open(path) as image:
        return image.note is not None
    return False


def check_commands(image: ImageFile, names: Sequence[str]) -> None:
    """Raise a RequestError for commands that are not in any directory of programs of the image."""
    if not names:
        return
    programs = {
        name
        for path in image.files.entries
        for directory, _, name in [path.rpartition("/")]
        if directory.endswith(("/bin", "/sbin"))
    }
    raise_all(
        [
            RequestError(
                f"--command {name}: `{image.path.name}` has no such program",
                hint="name a program in a directory `bin` or `sbin` of the image",
            )
            for name in names
            if name not in programs
        ]
    )


def check_writers(root: Path, name: str, emit: Emit) -> None:
    """Reject a root that everybody can write to, and warn of one that a group can write to."""
    directories = (root / part / below for part in ("envs", "modulefiles") for below in ("", name))
    for directory in (root, *directories):
        try:
            status = directory.stat()
        except OSError:
            continue  # it is created, or the installation reports the error
        runs = "and so decides what `module load` runs"
        if status.st_mode & stat.S_IWOTH:
            raise RequestError(
                f"everybody can write to `{directory}`, {runs}",
                hint=f"`chmod o-w {shell_path(directory)}`, or name another directory with --root DIR",
            )
        if status.st_mode & stat.S_IWGRP:
            group = host.group(status.st_gid)
            emit(
                Warned(
                    text=f"the group `{group}` can write to `{directory}`, {runs}",
                    hint=f"`chmod g-w {shell_path(directory)}`, unless you trust all of its members",
                )
            )
    for parent in parents_others_can_write(root):
        emit(
            Warned(
                text=f"others can write to `{parent}`, and can replace the module root in it",
                hint="name a directory with --root DIR that lies where only you and root can write",
            )
        )


def verdict_warnings(verdict: TestVerdict | None) -> Iterator[Warned]:
    """Yield the warning on an image that did not pass its test on this host."""
    if verdict is not None and verdict.state == "passed":
        return
    hint = _hint_to_test(verdict)
    if verdict is not None and verdict.state == "unproven":
        hint = "`envbuild test` shows what was not examined; an `mpi` or a framework brings jobs"
    yield Warned(text=f"test verdict: {visible(verdicts.sentence(verdict))}", hint=hint)
