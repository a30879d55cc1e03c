"""Notices an image that its lock has left behind."""

from __future__ import annotations

from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError
from envbuild.events import Emit, Warned
from envbuild.image.file import ImageFile
from envbuild.lock.text import MAX_BYTES, dump, load_file
from envbuild.quoting import shell_path
from envbuild.system.files import read_input
from envbuild.workflows.arguments import lock_path


def warn_if_older(image: ImageFile, emit: Emit) -> None:
    """Warn if the lock beside an image that envbuild built was written later, and pins something else."""
    if (older := left_behind(image)) is not None:
        emit(older)


def left_behind(image: ImageFile) -> Warned | None:
    """Return the warning that the lock beside an image was written later, and pins something else.

    A lock that cannot be read says nothing: `build` reports it.
    """
    path = lock_path(image.path)
    try:
        # Most images have no lock beside them: that is asked first.
        if path.stat().st_mtime <= image.path.stat().st_mtime or not image.built_by_envbuild:
            return None
        manifest = image.manifest
        locks = load_file(read_input(path, limit_bytes=MAX_BYTES), path)
        lock = locks.lock(manifest.architecture)
    except (OSError, EnvbuildError):
        return None
    # An update gives the spec a new version. An extended image has a lock of its own.
    is_of_image = locks.name == manifest.name and image.note is None
    if lock is None or not is_of_image or sha256_of(dump(lock)) == manifest.lock_digest:
        return None
    spec = shell_path(image.path.with_suffix(".yaml"))
    hint = f"`envbuild build {spec}` makes it again"
    return Warned(text=f"`{image.path.name}` is older than its lock `{path.name}`", hint=hint)


def newer_spec(image: ImageFile) -> str:
    """Return that the spec of an image was saved after its lock, in words; empty if it was not."""
    spec, lock = image.path.with_suffix(".yaml"), lock_path(image.path)
    try:
        if not image.built_by_envbuild or image.note is not None:
            return ""
        is_newer = spec.stat().st_mtime > lock.stat().st_mtime
    except (OSError, EnvbuildError):
        return ""
    hint = f"`envbuild lock {shell_path(spec)} --check` says whether that matters"
    return f"its spec `{spec.name}` was saved after its lock ({hint})" if is_newer else ""
