"""Stripes of images on Lustre, as the site file has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.events import Emit, Warned
from envbuild.spec.site import Site
from envbuild.system import host, process
from envbuild.system.quota import mount_of

# A server of metadata that does not answer must not hold up a build.
_TIMEOUT_S = 30.0
_STDOUT_BYTES = 64 << 10


def striped(site: Site | None, emit: Emit) -> Callable[[Path], bool]:
    """Return what makes an empty file with the stripes of a site if its directory is on Lustre.

    It returns whether it made the file. If it cannot, it warns and makes none: the image then has the stripes
    of its directory. Lustre fixes stripes when a file is made (lfs-setstripe(1)).
    """
    options: list[str] = []
    if site is not None and site.storage.stripe_count is not None:
        count = site.storage.stripe_count
        options += ["-c", "-1" if count == "all" else str(count)]
    if site is not None and site.storage.stripe_bytes is not None:
        options += ["-S", str(site.storage.stripe_bytes)]

    def create(path: Path) -> bool:
        mount = mount_of(path.parent) if options else None
        if mount is None or mount.kind != "lustre":
            return False
        if (problem := _set_stripes(path, options)) is not None:
            hint = "`storage` of the site file names them; `lfs getstripe` shows those of a file"
            emit(Warned(text=f"the image gets the stripes of `{path.parent}`: {problem}", hint=hint))
        return problem is None

    return create


def _set_stripes(path: Path, options: list[str]) -> str | None:
    """Make an empty file with stripes; return why that is not possible, or None."""
    program = host.search_path("lfs")
    if program is None:
        return "`lfs` is not on this machine"
    try:
        done = process.run(
            [program, "setstripe", *options, "--", path],
            env=host.environment(),
            timeout_s=_TIMEOUT_S,
            stdout_bytes=_STDOUT_BYTES,
        )
    except EnvbuildError as error:
        return error.problem
    if done.ok:
        return None if path.is_file() else "`lfs setstripe` made no file"
    path.unlink(missing_ok=True)
    if done.timed_out:
        return f"`lfs setstripe` did not answer within {_TIMEOUT_S:g} s"
    return f"`lfs setstripe {' '.join(options)}` fails: {done.last_lines(1) or f'exit code {done.code}'}"
