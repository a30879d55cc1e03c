"""Which tools make our bytes: their versions and digests, which a lock records."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, MachineError, raise_all
from envbuild.system import host, process
from envbuild.system.files import make_directory, open_regular, open_to_group, sha256
from envbuild.system.sealing import check_seal, sealed

NAMES = ("installer", "mksquashfs", "mmdebstrap", "zstandard")
# Tools that are Python packages, which run in our own process.
_PACKAGES = frozenset({"installer", "zstandard"})

_CACHE = "tools.json"
_CACHE_FORMAT = 2
_CACHE_LIMIT_BYTES = 1024 * 1024
_LOADERS_LIST = Path("/etc/ld.so.cache")
_VERSION_FLAG = {"mksquashfs": "-version"}
# What a program loads that decides its output; the rest of its libraries do not.
_LIBRARIES = {"mksquashfs": r"^lib(zstd|z)\.so"}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ToolIdentity:
    """A tool whose bytes decide ours.

    Attributes
    ----------
    version : str
        What the tool says of itself: the first line.
    digest : str
        ``sha256:…`` over the digests of the program and of the compression libraries that it loads.
    """

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a cache keeps of a tool: it holds as long as all its files are as they were."""

    files: dict[str, list[int]]
    version: str
    digest: str


def identify(cache: Path, names: Sequence[str] = NAMES) -> tuple[ToolIdentity, ...]:
    """Return the identities of tools, sorted by name.

    Parameters
    ----------
    cache : Path
        Directory in which to remember digests; they hold while size, times
        and inode of the files stay, and the loader's list of libraries. It
        may be missing, unwritable or damaged.
    names : sequence of str
        Which tools.

    Raises
    ------
    MachineError
        Tools are missing or cannot tell their version: all of them at once.
    """
    packages = sorted(_PACKAGES.intersection(names))
    names = sorted(set(names) - _PACKAGES)
    remembered = _load(cache)
    kept: dict[str, _Known] = {}
    errors: list[EnvbuildError] = []
    for name in names:
        try:
            program = locate(name)
            known = remembered.get(str(program))
            kept[str(program)] = known if known is not None and _still(known) else _examine(name, program)
        except EnvbuildError as error:
            errors.append(error)
    raise_all(errors)
    if any(remembered.get(program) is not known for program, known in kept.items()):
        _save(cache, {**remembered, **kept})
    programs = (
        ToolIdentity(name=name, version=known.version, digest=known.digest)
        for name, known in zip(names, kept.values(), strict=True)
    )
    return tuple(sorted((*programs, *map(_package, packages))))


def locate(name: str) -> Path:
    """Return the path of a tool; uv is the one that envbuild was installed with, else the one on PATH.

    Raises
    ------
    MachineError
        It is not on this machine.
    """
    if name == "uv":
        with contextlib.suppress(ImportError, FileNotFoundError):
            from uv import find_uv_bin  # noqa: PLC0415  # late: few commands need it

            return Path(find_uv_bin()).resolve()
    return host.find_program(name).resolve()


def _examine(name: str, program: Path) -> _Known:
    environment = host.environment()
    told = process.run([program, _VERSION_FLAG.get(name, "--version")], env=environment, timeout_s=30)
    version = told.output.strip().partition("\n")[0]
    # mksquashfs 4.5 ends with code 1 after it has told its version.
    if told.timed_out or not version:
        raise MachineError(f"`{program}` does not tell its version", hint=f"try `{told.command}`")
    files = [program, *_libraries(name, program)]
    digests = [_digest(path) for path in files]
    joined = "\n".join(digests).encode()
    digest = digests[0] if len(digests) == 1 else hashlib.sha256(joined).hexdigest()
    # A library that comes to lie before the one that is loaded shows in the loader's list.
    decided_by = [*files, _LOADERS_LIST] if _LOADERS_LIST.exists() else files
    return _Known(
        files={str(path): _signature(path) for path in decided_by}, version=version, digest=f"sha256:{digest}"
    )


def _package(name: str) -> ToolIdentity:
    """Return the identity of a Python package: its version, and the digest of its code as installed."""
    from importlib import metadata  # noqa: PLC0415  # late: few images need it

    distribution = metadata.distribution(name)
    modules = sorted(path for path in distribution.files or () if path.suffix in (".py", ".so"))
    lines = [f"{path} {_digest(Path(str(path.locate())))}\n" for path in modules]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return ToolIdentity(name=name, version=f"{name} {distribution.version}", digest=f"sha256:{digest}")


def _libraries(name: str, program: Path) -> list[Path]:
    """Paths of the libraries that count, in the order of their names."""
    pattern = _LIBRARIES.get(name)
    if pattern is None:
        return []
    listed = process.run([host.find_program("ldd"), program], env=host.environment(), timeout_s=30)
    found = re.findall(r"^\s*(\S+) => (/\S+)", listed.stdout, flags=re.MULTILINE)
    return [Path(path).resolve() for soname, path in sorted(found) if re.match(pattern, soname)]


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise MachineError(
            f"`{path}` cannot be read: {error.strerror}",
            hint="see that it may be read by you, or put another one first on PATH",
        ) from error


def _signature(path: Path) -> list[int]:
    status = path.stat()
    # A time of change cannot be set back: a program that is rewritten in place shows there.
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]


def _still(known: _Known) -> bool:
    try:
        return all(_signature(Path(path)) == signature for path, signature in known.files.items())
    except OSError:
        return False


def _load(cache: Path) -> dict[str, _Known]:
    """Read what is remembered; nothing where it cannot be used."""
    try:
        with open_regular(cache / _CACHE) as file:
            document = json.loads(check_seal(file.read(_CACHE_LIMIT_BYTES).decode()))
        if document["format"] != _CACHE_FORMAT:
            return {}
        entries = {program: _Known(**entry) for program, entry in document["programs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {program: entry for program, entry in entries.items() if _sound(entry)}


def _sound(entry: _Known) -> bool:
    return (
        isinstance(entry.version, str)
        and re.fullmatch(r"sha256:[0-9a-f]{64}", str(entry.digest)) is not None
        and isinstance(entry.files, dict)
        and bool(entry.files)
    )


def _save(cache: Path, entries: dict[str, _Known]) -> None:
    """Remember; a cache that cannot be written costs time and nothing else."""
    document = {"format": _CACHE_FORMAT, "programs": {path: asdict(known) for path, known in entries.items()}}
    with contextlib.suppress(OSError):
        make_directory(cache)
        partial = cache / f".{_CACHE}.{os.getpid()}"
        partial.write_text(sealed(json.dumps(document, sort_keys=True)))
        open_to_group(partial, cache)
        partial.replace(cache / _CACHE)
