"""Brings files to this machine: from the cache, from directories, from addresses. The digest decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.events import Task, task
from envbuild.resolve.context import NOT_HERE_HINT, ResolveContext
from envbuild.resolve.distributions import DistFile
from envbuild.resolve.files import CachedFile, FileCache, WrongBytes, apart, check
from envbuild.system import network
from envbuild.system.descriptors import with_real_paths
from envbuild.system.process import thread_pool
from envbuild.system.redaction import redact

_THREADS = 4

OnWrongBytes = Callable[[Path, WrongBytes], None]
WrongAddress = Callable[[str, WrongBytes], EnvbuildError]


@dataclass(frozen=True, slots=True)
class Download:
    """A file to be fetched, and the addresses that may serve it, in order."""

    file: CachedFile
    size_bytes: int
    addresses: Sequence[str]


def local_copy(
    file: CachedFile,
    context: ResolveContext,
    further: Iterable[Path] = (),
    *,
    on_wrong_bytes: OnWrongBytes = lambda _path, _difference: None,
) -> Path | None:
    """Return a path of this machine that has the bytes of a file; None if there is none.

    It is looked for in the cache, in the directories of `--from` in each of their forms, and at `further`
    paths. `on_wrong_bytes` is called for a file of its name with other bytes, outside of the cache.
    """
    cached = context.files.path(file)
    for path in (cached, *_kept(file, context), *further):
        if not path.is_file():
            continue
        try:
            check(path, file)
        except WrongBytes as difference:
            if path != cached:
                on_wrong_bytes(path, difference)
        else:
            return path
    return None


def _kept(file: CachedFile, context: ResolveContext) -> Iterator[Path]:
    """Yield the paths of a file in directories that `fetch.export` filled, or that hold files themselves."""
    for root in context.directories:
        yield from (root / apart(file), root / file.directory / file.file_name, root / file.file_name)


def obtain(file: DistFile, at: Location, context: ResolveContext) -> Path:
    """Return the path of a file on this machine, by which other programs can read it; fetch it if need be.

    RequestError: its address has another file, or it is not here and `context.offline` is set. MachineError:
    the address cannot be reached.
    """
    cached = context.files.path(file)
    local = network.local_path(file.address)
    path = local_copy(file, context, [local] if local is not None else [])
    if path is None and context.offline:
        raise not_here(file, at)
    if path is None:
        _fetch(file, at, context)
        path = cached
    return Path(with_real_paths(str(context.readable(path) if path == cached else path))).absolute()


def not_here(file: DistFile, at: Location) -> RequestError:
    """Return the error for a file that could be fetched only with a network."""
    return RequestError(f"offline: `{file.file_name}` is not on this machine", at=at, hint=NOT_HERE_HINT)


def _fetch(file: DistFile, at: Location, context: ResolveContext) -> None:
    def wrong(address: str, _: WrongBytes) -> EnvbuildError:
        problem = f"{redact(address)} is not the file that is named: its sha256 is another"
        return RequestError(problem, at=at, hint="correct the sha256, or the address")

    with network.Client() as client:
        size_bytes = client.length(file.address)
        download = Download(file, size_bytes, [file.address])
        title = f"fetch {file.file_name}"
        with task(context.emit, f"fetch:{file.name}", title, total_bytes=size_bytes) as running:
            failed = download_all([download], context.files, client, running, wrong=wrong)
    for _, error in failed:
        raise error


def download_all(
    downloads: Sequence[Download],
    files: FileCache,
    client: network.Client,
    running: Task,
    *,
    wrong: WrongAddress,
) -> list[tuple[CachedFile, EnvbuildError]]:
    """Download files into the cache in parallel; return those that did not arrive, each with the last error.

    `wrong` makes the error of an address that serves other bytes. MachineError: there is too little space.
    """

    def fetch(download: Download) -> EnvbuildError | None:
        """Try the addresses of a file until one serves its bytes; else return the last error."""
        file = download.file
        error: EnvbuildError = network.NetworkError(f"no origin has `{file.file_name}`", gone=True)
        reported = 0
        for address in download.addresses:
            try:
                with files.adding(file) as part:
                    for count in client.download(address, part, size_bytes=download.size_bytes):
                        if count > reported:  # less after a new address or a restarted transfer
                            running.advance(count - reported)
                            reported = count
            except WrongBytes as difference:
                error = wrong(address, difference)
            except network.NetworkError as failure:
                if is_gone(error) or not failure.gone:
                    error = failure
            else:
                return None
        return error

    files.check_room(sum(download.size_bytes for download in downloads))
    # The largest first: a big file at the end would leave the other threads idle.
    ordered = sorted(downloads, key=lambda item: (-item.size_bytes, item.file.sha256))
    with thread_pool(_THREADS) as pool:
        results = list(pool.map(fetch, ordered))
    return [(item.file, error) for item, error in zip(ordered, results, strict=True) if error is not None]


def is_gone(error: EnvbuildError) -> bool:
    """Return whether no address has a file any more."""
    return isinstance(error, network.NetworkError) and error.gone
