"""Make every locked file exist here, checked; and keep locked files elsewhere.

A locked file is the same wherever it comes from, because its digest decides:
it is looked for in the cache, in directories that `export` filled, in local
directories with wheels, and last in the network.
"""

from __future__ import annotations

import shlex
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, counted, raise_all
from envbuild.events import Emit, TaskAdvanced, Warned, task
from envbuild.lock.model import DebPin, PythonPin, RootPin
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.debian import proxies
from envbuild.resolve.files import FileCache, Pin, WrongBytes, check, file_name
from envbuild.resolve.origins import Machine, archives, read_machine
from envbuild.resolve.python import resolver_of
from envbuild.resolve.python27 import Python27
from envbuild.resolve.roots import place_of as root_place
from envbuild.resolve.uv import Uv
from envbuild.spec.asked import Asked
from envbuild.system import network
from envbuild.system.files import copy
from envbuild.system.leftovers import half_of
from envbuild.system.redaction import redact

__all__ = ["FileCache", "export", "fetch"]

_THREADS = 4
_TASK = "fetch"


def fetch(
    pins: Sequence[Pin],
    *,
    files: FileCache,
    asked: Asked,
    sources: Sequence[Path] = (),
    offline: bool = False,
    cache_dir: Path,
    emit: Emit,
    machine: Machine | None = None,
    patience: network.Patience | None = None,
) -> None:
    """Make the files of all pins exist in the cache, each checked by length and SHA-256.

    Parameters
    ----------
    sources : sequence of Path
        Directories that `export` filled; asked before the network.
    offline : bool
        Use only what is on this machine.
    cache_dir : Path
        uv's cache is kept below it.
    machine : Machine, optional
        The machine's configuration; read from it if absent.
    patience : network.Patience, optional
        Limits of each download.

    Raises
    ------
    RequestError
        Files are gone everywhere, or missing and `offline` is set; every one is named.
    MachineError
        An archive or index cannot be reached, or the cache cannot be written.
    """
    wanted = _lacking(pins, files, emit)
    if not wanted:
        return
    here = read_machine() if machine is None else machine
    context = ResolveContext(machine=here, cache_dir=cache_dir, emit=emit)
    python = context.python_sources(asked.site)
    missing = _from_directories(wanted.values(), files, sources, python.local_directories(), asked, emit)
    if not missing:
        return
    raise_all([*_lost_roots(missing, asked), *(_not_here(missing, asked) if offline else ())])
    debian = _archive_addresses(missing, asked, here)
    hosts = proxies(address for entries in debian.values() for address in entries) if debian else {}
    with network.Client(patience, hosts) as client:
        addresses = debian | _python_addresses(resolver_of(asked, context), missing)
        _Downloads(files=files, client=client, emit=emit, asked=asked).run(missing, addresses)


def _lacking(pins: Sequence[Pin], files: FileCache, emit: Emit) -> dict[str, Pin]:
    """Return what the cache lacks; a disk may have changed since what it has was compared with its digest."""
    there = [pin for pin in pins if files.has(pin)]
    with ThreadPoolExecutor(_THREADS) as pool:
        whole = list(pool.map(lambda pin: _fits(files.path(pin), pin), there))
    sound = {pin.sha256 for pin, good in zip(there, whole, strict=True) if good}
    for pin in there:
        files.freshen(pin)
    for pin in there:
        if pin.sha256 not in sound:
            emit(Warned(text=f"`{file_name(pin)}` in the cache is damaged; it is fetched again"))
    return {pin.sha256: pin for pin in pins if pin.sha256 not in sound}


def export(pins: Sequence[Pin], cache: FileCache, to_dir: Path) -> None:
    """Keep locked files in a directory: ``debs/``, ``wheels/``, ``roots/`` and ``SHA256SUMS``.

    Raises
    ------
    MachineError
        The directory cannot be written.
    RequestError
        A file of the cache is not there or was changed.
    """
    lines = []
    try:
        for pin in pins:
            name = f"{_shelf(pin)}/{file_name(pin)}"
            target = to_dir / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not _fits(target, pin):
                part = half_of(target)
                try:
                    copy(cache.path(pin), part)
                    check(part, pin)
                    part.chmod(0o644)
                    part.replace(target)
                finally:
                    part.unlink(missing_ok=True)
            lines.append(f"{pin.sha256}  {name}\n")
        (to_dir / "SHA256SUMS").write_text(
            "".join(sorted(lines, key=lambda line: line[66:])), encoding="utf-8"
        )
    except WrongBytes as error:
        problem = f"`{file_name(pin)}` in the cache is not the locked file: {error}"
        raise RequestError(problem, hint=f"remove `{cache.path(pin)}` and run it again") from error
    except OSError as error:
        raise MachineError(
            f"`{to_dir}` cannot be written: {error.strerror or error}",
            hint="free some space, or name another directory with --to DIR",
        ) from error


def _shelf(pin: Pin) -> str:
    if isinstance(pin, RootPin):
        return "roots"
    return "debs" if isinstance(pin, DebPin) else "wheels"


def _fits(path: Path, pin: Pin) -> bool:
    try:
        check(path, pin)
    except (OSError, WrongBytes):
        return False
    return True


def _from_directories(
    pins: Iterable[Pin],
    files: FileCache,
    sources: Sequence[Path],
    wheel_directories: Sequence[Path],
    asked: Asked,
    emit: Emit,
) -> list[Pin]:
    """Take what is on this machine already; return what is not."""
    missing = []
    for pin in pins:
        name = file_name(pin)
        places = [place for root in sources for place in (root / _shelf(pin) / name, root / name)]
        if isinstance(pin, PythonPin):
            places += [directory / name for directory in wheel_directories]
        if isinstance(pin, RootPin):
            places.append(root_place(asked, pin))
        if not any(_is_file(place) and _take(place, pin, files, emit) for place in places):
            missing.append(pin)
    return missing


def _is_file(place: Path) -> bool:
    try:
        return place.is_file()
    except OSError:  # below a directory that we may not enter
        return False


def _not_here(missing: Sequence[Pin], asked: Asked) -> Iterator[EnvbuildError]:
    lacking = sorted((pin for pin in missing if not isinstance(pin, RootPin)), key=file_name)
    if lacking:
        size = sum(pin.size_bytes for pin in lacking) / 1e6
        names = "".join(f"\n  {file_name(pin)}" for pin in lacking)
        yield RequestError(
            f"locked files are not on this machine, which is to do without network:"
            f" {len(lacking)}, {size:.1f} MB{names}",
            at=Location(path=asked.path),
            hint="`envbuild fetch SPEC --to DIR` where there is a network, then `--from DIR` here;"
            " or `layer export` there and `layer import` here",
        )


def _lost_roots(missing: Sequence[Pin], asked: Asked) -> Iterator[EnvbuildError]:
    lost = [pin for pin in missing if isinstance(pin, RootPin)]
    if lost:
        named = ", ".join(str(root_place(asked, pin)) for pin in lost)
        base = asked.base.name
        yield RequestError(
            f"the root of the base image `{base}` is not where its definition says, or was changed: {named}",
            at=Location(path=asked.base_path),
            hint="`--from DIR` takes what `envbuild fetch SPEC --to DIR` kept of it",
        )


def _take(place: Path, pin: Pin, files: FileCache, emit: Emit) -> bool:
    try:
        # Read before the cache is touched, so that the message blames the right one of the two.
        check(place, pin)
        files.add(pin, lambda part: copy(place, part))
    except WrongBytes as error:
        emit(Warned(text=f"`{place}` is not the locked file and is not used: {error}"))
        return False
    except OSError as error:
        emit(Warned(text=f"`{place}` cannot be read and is not used: {error.strerror or error}"))
        return False
    return True


def _archive_addresses(missing: Sequence[Pin], asked: Asked, machine: Machine) -> dict[str, list[str]]:
    """Return where each Debian package may be: SHA-256 → addresses in order."""
    pins = [pin for pin in missing if isinstance(pin, DebPin)]
    roots = {
        origin: archives(origin, asked.base.components, asked.site, machine)
        for origin in sorted({pin.origin for pin in pins})
    }
    return {
        # One root may stand there twice, with other keys.
        pin.sha256: list(
            dict.fromkeys(f"{archive.root}/{quote(pin.file, safe='/~')}" for archive in roots[pin.origin])
        )
        for pin in pins
    }


def _python_addresses(resolver: Uv | Python27, missing: Sequence[Pin]) -> dict[str, Sequence[str]]:
    """Ask where the locked files are: SHA-256 → addresses, maybe none."""
    addresses: dict[str, Sequence[str]] = {}
    left = [pin for pin in missing if isinstance(pin, PythonPin)]
    while left:
        # An image and the builds from source in it may hold two versions of one distribution.
        pins = {pin.name: pin for pin in left}
        left = [pin for pin in left if pins[pin.name] != pin]
        candidates = resolver.locate({name: pin.version for name, pin in pins.items()})
        for name, pin in pins.items():
            addresses[pin.sha256] = [file.address for file in candidates.get(name, ()) if file.is_same(pin)]
    return addresses


@dataclass(slots=True, kw_only=True)
class _Downloads:
    """Downloads side by side; every failure is kept, so that all are told at once."""

    files: FileCache
    client: network.Client
    emit: Emit
    asked: Asked
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _mutex: threading.Lock = field(default_factory=threading.Lock, init=False)
    _gone: list[str] = field(default_factory=list, init=False)
    _errors: list[EnvbuildError] = field(default_factory=list, init=False)

    def run(self, pins: Sequence[Pin], addresses: Mapping[str, Sequence[str]]) -> None:
        total = sum(pin.size_bytes for pin in pins)
        title = f"fetch {counted(len(pins), 'file')}"
        # The largest first: a big file begun last would leave the other threads idle.
        ordered = sorted(pins, key=lambda pin: (-pin.size_bytes, pin.sha256))
        with task(self.emit, _TASK, title, total_bytes=total) as running:
            with ThreadPoolExecutor(_THREADS) as pool:
                downloads = [pool.submit(self._one, pin, addresses[pin.sha256]) for pin in ordered]
                try:
                    self._wait(downloads)
                except BaseException:
                    self._stop.set()
                    pool.shutdown(cancel_futures=True)
                    raise
            raise_all([*self._gone_error(), *self._errors])
            running.detail = f"{total / 1e6:.0f} MB"

    def _wait(self, downloads: Sequence[Future[None]]) -> None:
        for download in as_completed(downloads):
            download.result()

    def _one(self, pin: Pin, addresses: Sequence[str]) -> None:
        """Try each address of a file until one gives the locked bytes."""
        last: EnvbuildError | None = None
        gone = True
        report = self._reporter()
        for address in addresses:
            try:
                self.files.add(pin, self._writer(address, pin, report))
            except WrongBytes as error:
                shown = redact(address)
                last = RequestError(f"{shown} is not the locked file: {error}", at=self._at(), hint=_REFUSED)
                gone = False
            except network.NetworkError as error:
                last, gone = error, gone and error.gone
            else:
                return
        if gone:
            self._gone.append(f"{pin.name} {pin.version}")
        elif last is not None:
            self._errors.append(last)

    def _writer(self, address: str, pin: Pin, report: Callable[[int], None]) -> Callable[[Path], None]:
        local = network.local_path(address)

        def write(part: Path) -> None:
            if local is not None:
                try:
                    shutil.copyfile(local, part)
                except OSError as error:
                    missing = isinstance(error, FileNotFoundError)
                    raise network.NetworkError(
                        f"`{local}` cannot be read: {error.strerror}", gone=missing, hint=network.OTHER
                    ) from error
                report(part.stat().st_size)
                return
            self.client.download(address, part, size_bytes=pin.size_bytes, on_bytes=report, stop=self._stop)

        return write

    def _reporter(self) -> Callable[[int], None]:
        """Return what tells how a file grows; bytes that come a second time are not told again."""
        highest = 0

        def report(count: int) -> None:
            nonlocal highest
            if count > highest:
                with self._mutex:
                    self.emit(TaskAdvanced(task=_TASK, bytes=count - highest))
                highest = count

        return report

    def _gone_error(self) -> list[EnvbuildError]:
        if not self._gone:
            return []
        names = ", ".join(sorted(self._gone))
        words = " ".join(sorted(name.partition(" ")[0] for name in self._gone))
        again = f"`envbuild lock {shlex.quote(str(self.asked.path))} --upgrade {words}` takes newer versions;"
        return [
            RequestError(
                f"no origin has these locked files any more: {names}",
                at=self._at(),
                hint=f"{again} `--from DIR` takes the files from a directory that keeps them",
            )
        ]

    def _at(self) -> Location:
        return Location(path=self.asked.path)


_REFUSED = "it was not kept; a broken mirror or a proxy may have changed it"
