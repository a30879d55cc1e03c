"""Fetches locked files, and exports them to directories.

The digest decides, so a locked file may come from anywhere: the cache, directories that `export` filled,
local directories with wheels, and last the network.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from packaging.requirements import Requirement

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, pluralize, raise_all
from envbuild.events import Emit, Warned, task
from envbuild.lock.model import DebPin, PythonPin, RootPin
from envbuild.resolve.commits import Commits
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.debian import proxies
from envbuild.resolve.explicit_wheels import ExplicitWheels
from envbuild.resolve.files import FileCache, Pin, WrongBytes, apart, check, is_whole
from envbuild.resolve.images import fetch_layers
from envbuild.resolve.obtain import Download, download_all, is_gone, local_copy
from envbuild.resolve.origins import Machine, PythonSources, archives
from envbuild.resolve.python import Distributions
from envbuild.resolve.roots import FinishedRoot
from envbuild.resolve.sources import Source
from envbuild.spec.python_request import PYTORCH, OriginRule, PythonRequest
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.site import Site
from envbuild.system import network
from envbuild.system.files import atomic_file, copy, copy_range
from envbuild.system.process import thread_pool
from envbuild.system.redaction import redact
from envbuild.system.references import Reference
from envbuild.system.registry import Repository

HINT_EXPORT = "free some space, or name another directory with --to DIR"
_THREADS = 4
_NAMED = 10  # files that an error names


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOrigins:
    """Origins of the locked files of an image, beyond the cache and directories of `--from`."""

    python: PythonRequest
    """Its target, named wheels, commits and origin rules count."""
    site: Site | None
    components: tuple[str, ...] = ("main",)
    """Components of Debian's archives."""
    wheel_directories: tuple[Path, ...] = ()
    """Directories with wheels that a spec names."""
    root: FinishedRoot | None = None
    image: str = ""
    """``HOST/NAME@sha256:…`` of the registry that has the layers of the base; empty for other bases."""

    @property
    def path(self) -> Path:
        """The file of the spec or image, for messages."""
        return self.python.path


def origins_of(resolved: ResolvedSpec) -> FileOrigins:
    """Return where the files of a spec's lock come from."""
    return FileOrigins(
        python=resolved.python,
        site=resolved.site,
        components=resolved.base.components,
        wheel_directories=resolved.wheel_directories,
        root=None if resolved.base_image else FinishedRoot.of(resolved.base_file),
        image=resolved.base_image,
    )


def fetch(
    pins: Iterable[Pin],
    origins: FileOrigins,
    context: ResolveContext,
    limits: network.RequestLimits | None = None,
) -> None:
    """Put the files of all pins into the context's cache, each checked by length and SHA-256.

    RequestError: files are gone everywhere, or missing and `context.offline` is set; all are named.
    MachineError: an archive or index cannot be reached, or the cache cannot be written.
    """
    missing = _not_cached(pins, context.files, context.emit)
    if not missing:
        return
    python_sources = context.python_sources(origins.site, origins.wheel_directories)
    exclusive: tuple[Source, ...] = (
        ExplicitWheels(origins.python, context),
        Commits(origins.python, context),
    )
    missing = [pin for pin in missing if not _take_local(pin, origins, exclusive, python_sources, context)]
    raise_all(
        [*_lost_roots(missing, origins), *(_not_here(missing, origins, context) if context.offline else ())]
    )
    if origins.image and (layers := [pin for pin in missing if isinstance(pin, RootPin)]):
        with Repository(Reference.parse(origins.image), limits=limits) as repository:
            fetch_layers(layers, repository, context)
        missing = [pin for pin in missing if not isinstance(pin, RootPin)]
    missing = [
        pin
        for pin in missing
        if not (isinstance(pin, PythonPin) and any(source.remake(pin) for source in exclusive))
    ]
    if not missing:
        return
    addresses = _archive_addresses(missing, origins, context.machine)
    hosts = proxies(address for urls in addresses.values() for address in urls) if addresses else {}
    addresses |= _python_addresses(missing, origins, exclusive, python_sources, context)
    downloads = [Download(pin, pin.size_bytes, addresses.get(pin.sha256, ())) for pin in missing]
    total = sum(download.size_bytes for download in downloads)
    title = f"fetch {pluralize(len(downloads), 'file')}"

    def wrong(address: str, difference: WrongBytes) -> EnvbuildError:
        return RequestError(
            f"{redact(address)} is not the locked file: {difference}",
            at=Location(path=origins.path),
            hint="it was not kept; a broken mirror or a proxy may have changed it",
        )

    with (
        network.Client(limits, hosts) as client,
        task(context.emit, "fetch", title, total_bytes=total) as running,
    ):
        failed = download_all(downloads, context.files, client, running, wrong=wrong)
        lost = {file.sha256 for file, error in failed if is_gone(error)}
        others = {error.problem: error for _, error in failed if not is_gone(error)}  # each once
        raise_all([*_gone([pin for pin in missing if pin.sha256 in lost], origins), *others.values()])
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
        problem = f"`{pin.file_name}` in the cache is not the locked file: {error}"
        raise RequestError(problem, hint=f"remove `{cache.path(pin)}` and run it again") from error
    except OSError as error:
        raise MachineError(
            f"`{to_dir}` cannot be written: {error.strerror or error}", hint=HINT_EXPORT
        ) from error


def pins_to_export(pins: Sequence[Pin], to_dir: Path) -> list[Pin]:
    """Return the locked files that `export` would write, each once; a file of the same length counts."""
    names = _names_of(pins)
    distinct = {pin.sha256: pin for pin in pins}
    return [pin for digest, pin in distinct.items() if not _has_length(to_dir / names[digest], pin)]


def _has_length(path: Path, pin: Pin) -> bool:
    try:
        return path.stat().st_size == pin.size_bytes
    except OSError:
        return False


def _names_of(pins: Sequence[Pin]) -> dict[str, str]:
    """Return the path of each file below the directory, by digest; of files of one name all are kept."""
    names: dict[str, str] = {}
    for pin in sorted({pin.sha256: pin for pin in pins}.values(), key=lambda pin: pin.sha256):
        name = f"{pin.directory}/{pin.file_name}"
        names[pin.sha256] = apart(pin) if name in names.values() else name
    return names


def _not_cached(pins: Iterable[Pin], files: FileCache, emit: Emit) -> list[Pin]:
    """Return the pins whose files the cache lacks, or has damaged: a disk may lose data."""
    unique = list({pin.sha256: pin for pin in pins}.values())
    paths = [files.path(pin) for pin in unique]
    with thread_pool(_THREADS) as pool:
        in_cache = list(pool.map(is_whole, paths, unique))
    missing = []
    for pin, path, is_cached in zip(unique, paths, in_cache, strict=True):
        if is_cached:
            with contextlib.suppress(OSError):
                os.utime(path)  # `prune` leaves files that were used recently
        else:
            missing.append(pin)
            if os.path.lexists(path):
                emit(Warned(text=f"`{pin.file_name}` in the cache is damaged; it is fetched again"))
    return missing


def _take_local(
    pin: Pin,
    origins: FileOrigins,
    exclusive: Sequence[Source],
    python_sources: PythonSources,
    context: ResolveContext,
) -> bool:
    """Copy a file from this machine into the cache; return whether it is here."""

    def warn(path: Path, difference: WrongBytes) -> None:
        context.emit(Warned(text=f"`{path}` is not the locked file and is not used: {difference}"))

    further: list[Path] = []
    if isinstance(pin, PythonPin):
        further += [directory / pin.file_name for directory in python_sources.local_directories()]
        files = (source.files({pin.name: pin.version}).get(pin.name, ()) for source in exclusive)
        addresses = (file.address for offered in files for file in offered if file.is_same(pin))
        further += [path for address in addresses if (path := network.local_path(address)) is not None]
    if isinstance(pin, RootPin) and origins.root is not None:
        further.append(origins.root.path_of(pin))
    path = local_copy(pin, context, further, on_wrong_bytes=warn)
    if path is None:
        return False
    try:
        with context.files.adding(pin) as part:
            copy(path, part)
    except WrongBytes as difference:  # it changed meanwhile
        warn(path, difference)
        return False
    return True


def _not_here(
    missing: Sequence[Pin], origins: FileOrigins, context: ResolveContext
) -> Iterator[EnvbuildError]:
    # Of other roots `_lost_roots` speaks.
    fetched = (pin for pin in missing if origins.image or not isinstance(pin, RootPin))
    files = sorted(fetched, key=lambda pin: pin.file_name)
    if files:
        size = sum(pin.size_bytes for pin in files) / 1e6
        listed = "".join(f"\n  {pin.file_name}" for pin in files[:_NAMED])
        more = f"\n  and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        directories = ", ".join(f"`{directory}`" for directory in context.directories)
        elsewhere = f" and in {directories}" if directories else ""
        missing_here = (
            f"{pluralize(len(files), 'locked file')} ({size:.1f} MB) missing on this machine{elsewhere}"
        )
        yield RequestError(
            f"offline: {missing_here}{listed}{more}",
            at=Location(path=origins.path),
            hint="run `envbuild fetch SPEC --to DIR` on a machine with a network, then `--from DIR` here;"
            " or `layer export` there and `layer import` here",
        )


def _lost_roots(missing: Sequence[Pin], origins: FileOrigins) -> Iterator[EnvbuildError]:
    root = origins.root
    lost = [str(root.path_of(pin)) for pin in missing if root is not None and isinstance(pin, RootPin)]
    if root is not None and lost:
        yield RequestError(
            f"the root of the base image `{root.base}` is not where its definition says, or was"
            f" changed: {', '.join(lost)}",
            at=Location(path=root.definition),
            hint="`--from DIR` takes what `envbuild fetch SPEC --to DIR` kept of it",
        )


def _archive_addresses(
    missing: Sequence[Pin], origins: FileOrigins, machine: Machine
) -> dict[str, list[str]]:
    """Return the possible addresses of each Debian package, in order, by SHA-256."""
    pins = [pin for pin in missing if isinstance(pin, DebPin)]
    # An archive may be listed twice, with other keys.
    roots = {
        origin: dict.fromkeys(
            archive.root for archive in archives(origin, origins.components, origins.site, machine)
        )
        for origin in sorted({pin.origin for pin in pins})
    }
    return {
        pin.sha256: [f"{root}/{quote(pin.file, safe='/~')}" for root in roots[pin.origin]] for pin in pins
    }


def _python_addresses(
    missing: Sequence[Pin],
    origins: FileOrigins,
    exclusive: Sequence[Source],
    python_sources: PythonSources,
    context: ResolveContext,
) -> dict[str, list[str]]:
    """Return the current addresses of each wheel or source archive by SHA-256; maybe none."""
    addresses: dict[str, list[str]] = {}
    # A build may import a wheel of what the image gets from its source.
    for is_wheel in (True, False):
        left = [pin for pin in missing if isinstance(pin, PythonPin) and pin.is_wheel == is_wheel]
        request = replace(
            origins.python,
            built=frozenset(() if is_wheel else (pin.name for pin in left)),
            origin_rules=(*origins.python.origin_rules, *_rules_of_pins(left, python_sources.named)),
        )
        distributions = Distributions.of(request, python_sources, context, tuple(exclusive))
        while left:
            # An image and the builds from source in it may hold two versions of one distribution.
            pins = {pin.name: pin for pin in left}
            left = [pin for pin in left if pins[pin.name] != pin]
            offered = distributions.files({name: pin.version for name, pin in pins.items()})
            for name, pin in pins.items():
                addresses[pin.sha256] = [file.address for file in offered.get(name, ()) if file.is_same(pin)]
    return addresses


def _rules_of_pins(pins: Iterable[PythonPin], named: Collection[str]) -> Iterator[OriginRule]:
    """Yield rules by which locked files of PyTorch's origins and of `named` ones are looked for there."""
    for pin in pins:
        if pin.origin.startswith(PYTORCH) or pin.origin in named:
            yield OriginRule(
                origins=(pin.origin,),
                names=frozenset({pin.name}),
                requirements=(Requirement(f"{pin.name}==={pin.version}"),),
            )


def _gone(pins: Sequence[Pin], origins: FileOrigins) -> Iterator[EnvbuildError]:
    if pins:
        names = ", ".join(sorted(f"{pin.name} {pin.version}" for pin in pins))
        words = " ".join(sorted(pin.name for pin in pins))
        again = f"`envbuild lock {shlex.quote(str(origins.path))} --upgrade {words}` takes newer versions;"
        yield RequestError(
            f"no origin has these locked files any more: {names}",
            at=Location(path=origins.path),
            hint=f"{again} `--from DIR` takes the files from a directory that keeps them",
        )
