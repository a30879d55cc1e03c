"""Versions and digests of the tools that decide the bytes of layers; a lock records them."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, MachineError, raise_all
from envbuild.system import host, process
from envbuild.system.files import sha256

NAMES = ("installer", "mksquashfs", "mmdebstrap", "zlib-ng", "zstandard")
UV_RELEASE = "0.13"
"""The release of uv whose messages are understood, as in pyproject.toml."""
# Python packages, which run in our own process.
_PACKAGES = frozenset({"installer", "zlib-ng", "zstandard"})

_VERSION_FLAG = {"mksquashfs": "-version"}
# Perl takes a quarter of a second to print what its script says.
_VERSION_IN_SCRIPT = {"mmdebstrap": re.compile(rb"^our \$VERSION = '([\w.~+-]+)';$", re.MULTILINE)}
_HEAD_BYTES = 64 << 10
# Libraries that decide a program's output.
_LIBRARIES = {"mksquashfs": r"^lib(zstd|z)\.so"}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ToolIdentity:
    """A tool that decides the bytes of layers."""

    name: str
    version: str
    """The first line of its ``--version``."""
    digest: str
    """``sha256:…`` over the digests of the program and of the compression libraries that it loads."""


def identify(names: Sequence[str] = NAMES) -> tuple[ToolIdentity, ...]:
    """Return the identities of tools, sorted by name; report all that are missing or broken at once."""
    identities: list[ToolIdentity] = []
    errors: list[EnvbuildError] = []
    for name in sorted(set(names)):
        try:
            identities.append(_package(name) if name in _PACKAGES else _program(name))
        except EnvbuildError as error:
            errors.append(error)
    raise_all(errors)
    return tuple(identities)


def locate(name: str) -> Path:
    """Return the path of a tool; for uv the one that envbuild was installed with, else the one on PATH."""
    if name == "uv":
        with contextlib.suppress(ImportError, FileNotFoundError):
            from uv import find_uv_bin  # noqa: PLC0415  # late: few commands need it

            return Path(find_uv_bin()).resolve()
    return host.find_program(name).resolve()


def _program(name: str) -> ToolIdentity:
    """Return the identity of a program, of which compression libraries are a part."""
    program = locate(name)
    version = _version_in_script(name, program) or _printed_version(name, program)
    digests = [_digest(path) for path in (program, *_libraries(name, program))]
    joined = "\n".join(digests).encode()
    digest = digests[0] if len(digests) == 1 else hashlib.sha256(joined).hexdigest()
    return ToolIdentity(name=name, version=version, digest=f"sha256:{digest}")


def _version_in_script(name: str, program: Path) -> str:
    """Return the version that a script would print; empty if its beginning does not assign it."""
    if name not in _VERSION_IN_SCRIPT:
        return ""
    with contextlib.suppress(OSError), program.open("rb") as file:
        if match := _VERSION_IN_SCRIPT[name].search(file.read(_HEAD_BYTES)):
            return f"{name} {match[1].decode()}"
    return ""


def _printed_version(name: str, program: Path) -> str:
    finished = process.run(
        [program, _VERSION_FLAG.get(name, "--version")], env=host.environment(), timeout_s=30
    )
    version = finished.output.strip().partition("\n")[0]
    # mksquashfs 4.5 ends with code 1 after it has printed its version.
    if finished.timed_out or not version:
        raise MachineError(f"`{program}` does not print its version", hint=f"try `{finished.command}`")
    return version


def _package(name: str) -> ToolIdentity:
    """Return the identity of a Python package: its version, and the digest of its code as installed."""
    from importlib import metadata  # noqa: PLC0415  # late: few images need it

    distribution = metadata.distribution(name)
    modules = sorted(path for path in distribution.files or () if path.suffix in (".py", ".so"))
    lines = [f"{path} {_digest(Path(str(path.locate())))}\n" for path in modules]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return ToolIdentity(name=name, version=f"{name} {distribution.version}", digest=f"sha256:{digest}")


def _libraries(name: str, program: Path) -> list[Path]:
    """Return the libraries that decide a program's output, in the order of their names."""
    pattern = _LIBRARIES.get(name)
    if pattern is None:
        return []
    listed = process.run([host.find_program("ldd"), program], env=host.environment(), timeout_s=30)
    libraries = re.findall(r"^\s*(\S+) => (/\S+)", listed.stdout, flags=re.MULTILINE)
    return [Path(path).resolve() for soname, path in sorted(libraries) if re.match(pattern, soname)]


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise MachineError(
            f"`{path}` cannot be read: {error.strerror}",
            hint="check that you may read it, or put another one first on PATH",
        ) from error
