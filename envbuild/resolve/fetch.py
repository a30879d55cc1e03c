"""Fetches locked files, and exports them to directories.

The digest decides, so a locked file may come from anywhere: the cache, directories that `export` filled,
local directories with wheels, and last the network.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, pluralize, raise_all
from envbuild.events import Emit, Task, Warned, task
from envbuild.lock.model import DebPin, PythonPin, RootPin
from envbuild.resolve import explicit_wheels, repository
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.debian import proxies
from envbuild.resolve.files import FileCache, Pin, WrongBytes, check, file_name, is_whole
from envbuild.resolve.origins import Machine, archives
from envbuild.resolve.python import locate, resolver_of
from envbuild.resolve.python27 import Python27
from envbuild.resolve.roots import place_of as root_place
from envbuild.resolve.uv import Uv
from envbuild.spec.resolved import ResolvedSpec
from envbuild.system import network
from envbuild.system.files import atomic_file, copy, copy_range
from envbuild.system.process import thread_pool
from envbuild.system.redaction import redact

_THREADS = 4
_NAMED = 10  # files that an error names


def fetch(
    pins: Iterable[Pin],
    resolved: ResolvedSpec,
    context: ResolveContext,
    limits: network.RequestLimits | None = None,
) -> None:
    """Put the files of all pins into the context's cache, each checked by length and SHA-256.

    RequestError: files are gone everywhere, or missing and `context.offline` is set; all are named.
    MachineError: an archive or index cannot be reached, or the cache cannot be written.
    """
    files = context.files
    missing = _not_cached(pins, files, context.emit)
    wheels = context.python_sources(resolved).local_directories() if missing else ()
    missing = [pin for pin in missing if not _take_local(pin, resolved, wheels, context)]
    if not missing:
        return
    raise_all(
        [*_lost_roots(missing, resolved), *(_not_here(missing, resolved, context) if context.offline else ())]
    )
    missing = [
        pin
        for pin in missing
        if not isinstance(pin, PythonPin) or not repository.archive_locked(resolved, pin, context)
    ]
    addresses = _archive_addresses(missing, resolved, context.machine)
    hosts = proxies(address for places in addresses.values() for address in places) if addresses else {}
    python = [pin for pin in missing if isinstance(pin, PythonPin)]
    # A build may import a wheel of what the image gets from its source.
    for wants_wheel, spec in ((True, resolved.wheels_only()), (False, resolved)):
        pins_of_kind = [pin for pin in python if pin.is_wheel == wants_wheel]
        addresses |= _python_addresses(resolver_of(spec, context, pins=pins_of_kind), pins_of_kind)
    total = sum(pin.size_bytes for pin in missing)
    title = f"fetch {pluralize(len(missing), 'file')}"
    with (
        network.Client(limits, hosts) as client,
        task(context.emit, "fetch", title, total_bytes=total) as running,
    ):
        _download(missing, addresses, resolved, files, client, running)
        running.detail = f"{total / 1e6:.0f} MB"


def export(pins: Sequence[Pin], cache: FileCache, to_dir: Path) -> None:
    """Copy locked files to a directory: ``debs/``, ``wheels/``, ``roots/`` and ``SHA256SUMS``."""
    names = _names_of(pins)
    sums = "".join(f"{digest}  {name}\n" for digest, name in sorted(names.items(), key=lambda item: item[1]))
    try:
        for pin in pins:
            target = to_dir / names[pin.sha256]
            target.parent.mkdir(parents=True, exist_ok=True)
            if not is_whole(target, pin):
                check(source := cache.path(pin), pin)
                with atomic_file(target, mode=0o644) as file, source.open("rb") as locked:
                    copy_range(locked.fileno(), 0, pin.size_bytes, file, 0)
        (to_dir / "SHA256SUMS").write_text(sums, encoding="utf-8")
    except WrongBytes as error:
        problem = f"`{file_name(pin)}` in the cache is not the locked file: {error}"
        raise RequestError(problem, hint=f"remove `{cache.path(pin)}` and run it again") from error
    except OSError as error:
        raise MachineError(
            f"`{to_dir}` cannot be written: {error.strerror or error}",
            hint="free some space, or name another directory with --to DIR",
        ) from error


def _names_of(pins: Sequence[Pin]) -> dict[str, str]:
    """Return the path of each file below the directory, by digest; of files of one name all are kept."""
    names: dict[str, str] = {}
    for pin in sorted({pin.sha256: pin for pin in pins}.values(), key=lambda pin: pin.sha256):
        name = f"{_directory_of(pin)}/{file_name(pin)}"
        names[pin.sha256] = _apart(pin) if name in names.values() else name
    return names


def _apart(pin: Pin) -> str:
    """Return the path below a directory of a file whose name another one has, too."""
    return f"{_directory_of(pin)}/{pin.sha256[:12]}/{file_name(pin)}"


def _directory_of(pin: Pin) -> str:
    if isinstance(pin, RootPin):
        return "roots"
    return "debs" if isinstance(pin, DebPin) else "wheels"


def _not_cached(pins: Iterable[Pin], files: FileCache, emit: Emit) -> list[Pin]:
    """Return the pins whose files the cache lacks, or has damaged: a disk may lose data."""
    wanted = list({pin.sha256: pin for pin in pins}.values())
    paths = [files.path(pin) for pin in wanted]
    with thread_pool(_THREADS) as pool:
        whole = list(pool.map(is_whole, paths, wanted))
    missing = []
    for pin, path, is_there in zip(wanted, paths, whole, strict=True):
        if is_there:
            with contextlib.suppress(OSError):
                os.utime(path)  # `prune` leaves young files
        else:
            missing.append(pin)
            if os.path.lexists(path):
                text = f"`{file_name(pin)}` in the cache is damaged; it is fetched again"
                emit(Warned(text=text))
    return missing


def _take_local(pin: Pin, resolved: ResolvedSpec, wheels: Sequence[Path], context: ResolveContext) -> bool:
    """Copy a file from this machine into the cache; return whether it is here."""
    name = file_name(pin)
    below = (_apart(pin), f"{_directory_of(pin)}/{name}", name)
    places = [root / path for root in context.directories for path in below]
    if isinstance(pin, PythonPin):
        places += [directory / name for directory in wheels]
        places += explicit_wheels.local_paths(resolved, pin)
    if isinstance(pin, RootPin):
        places.append(root_place(resolved, pin))
    for place in filter(os.path.isfile, places):
        try:
            # Read before the cache is touched, so that an error names the right file.
            check(place, pin)
            with context.files.adding(pin) as part:
                copy(place, part)
        except WrongBytes as error:
            context.emit(Warned(text=f"`{place}` is not the locked file and is not used: {error}"))
        else:
            return True
    return False


def _not_here(
    missing: Sequence[Pin], resolved: ResolvedSpec, context: ResolveContext
) -> Iterator[EnvbuildError]:
    files = sorted((pin for pin in missing if not isinstance(pin, RootPin)), key=file_name)
    if files:
        size = sum(pin.size_bytes for pin in files) / 1e6
        explicit_wheels = "".join(f"\n  {file_name(pin)}" for pin in files[:_NAMED])
        more = f"\n  and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        places = (
            f" and in {', '.join(f'`{place}`' for place in context.directories)}"
            if context.directories
            else ""
        )
        missing_here = (
            f"{pluralize(len(files), 'locked file')} ({size:.1f} MB) missing on this machine{places}"
        )
        yield RequestError(
            f"offline: {missing_here}{explicit_wheels}{more}",
            at=Location(path=resolved.path),
            hint="run `envbuild fetch SPEC --to DIR` on a machine with a network, then `--from DIR` here;"
            " or `layer export` there and `layer import` here",
        )


def _lost_roots(missing: Sequence[Pin], resolved: ResolvedSpec) -> Iterator[EnvbuildError]:
    lost = [str(root_place(resolved, pin)) for pin in missing if isinstance(pin, RootPin)]
    if lost:
        yield RequestError(
            f"the root of the base image `{resolved.base.name}` is not where its definition says, or was"
            f" changed: {', '.join(lost)}",
            at=Location(path=resolved.base_path),
            hint="`--from DIR` takes what `envbuild fetch SPEC --to DIR` kept of it",
        )


def _archive_addresses(
    missing: Sequence[Pin], resolved: ResolvedSpec, machine: Machine
) -> dict[str, list[str]]:
    """Return the possible addresses of each Debian package, in order, by SHA-256."""
    pins = [pin for pin in missing if isinstance(pin, DebPin)]
    # An archive may be listed twice, with other keys.
    roots = {
        origin: dict.fromkeys(
            archive.root for archive in archives(origin, resolved.base.components, resolved.site, machine)
        )
        for origin in sorted({pin.origin for pin in pins})
    }
    return {
        pin.sha256: [f"{root}/{quote(pin.file, safe='/~')}" for root in roots[pin.origin]] for pin in pins
    }


def _python_addresses(resolver: Uv | Python27, left: Sequence[PythonPin]) -> dict[str, list[str]]:
    """Return the current addresses of each wheel or source archive by SHA-256; maybe none."""
    addresses = {}
    while left:
        # An image and the builds from source in it may hold two versions of one distribution.
        pins = {pin.name: pin for pin in left}
        left = [pin for pin in left if pins[pin.name] != pin]
        candidates = locate(resolver, {name: pin.version for name, pin in pins.items()})
        for name, pin in pins.items():
            addresses[pin.sha256] = [file.address for file in candidates.get(name, ()) if file.is_same(pin)]
    return addresses


def _download(
    pins: Sequence[Pin],
    addresses: Mapping[str, Sequence[str]],
    resolved: ResolvedSpec,
    files: FileCache,
    client: network.Client,
    running: Task,
) -> None:
    """Download files into the cache in parallel; report all errors at once.

    `addresses` maps the SHA-256 of a file to its addresses, in order.
    """

    def download(pin: Pin) -> EnvbuildError | None:
        """Try the addresses of a file until one serves the locked bytes; else return the last error."""
        error: EnvbuildError = network.NetworkError(f"no origin has `{file_name(pin)}`", gone=True)
        reported = 0
        for address in addresses[pin.sha256]:
            try:
                with files.adding(pin) as part:
                    for count in client.download(address, part, size_bytes=pin.size_bytes):
                        if count > reported:  # less after a new address or a restarted transfer
                            running.advance(count - reported)
                            reported = count
            except WrongBytes as difference:
                error = RequestError(
                    f"{redact(address)} is not the locked file: {difference}",
                    at=Location(path=resolved.path),
                    hint="it was not kept; a broken mirror or a proxy may have changed it",
                )
            except network.NetworkError as failure:
                if _is_gone(error) or not failure.gone:
                    error = failure
            else:
                return None
        return error

    files.check_room(pins)
    # The largest first: a big file at the end would leave the other threads idle.
    ordered = sorted(pins, key=lambda pin: (-pin.size_bytes, pin.sha256))
    with thread_pool(_THREADS) as pool:
        results = list(pool.map(download, ordered))
    failed = [(pin, error) for pin, error in zip(ordered, results, strict=True) if error is not None]
    gone = [pin for pin, error in failed if _is_gone(error)]
    others = {error.problem: error for _, error in failed if not _is_gone(error)}  # each once
    raise_all([*_gone(gone, resolved), *others.values()])


def _is_gone(error: EnvbuildError) -> bool:
    return isinstance(error, network.NetworkError) and error.gone


def _gone(pins: Sequence[Pin], resolved: ResolvedSpec) -> Iterator[EnvbuildError]:
    if pins:
        names = ", ".join(sorted(f"{pin.name} {pin.version}" for pin in pins))
        words = " ".join(sorted(pin.name for pin in pins))
        again = f"`envbuild lock {shlex.quote(str(resolved.path))} --upgrade {words}` takes newer versions;"
        yield RequestError(
            f"no origin has these locked files any more: {names}",
            at=Location(path=resolved.path),
            hint=f"{again} `--from DIR` takes the files from a directory that keeps them",
        )
