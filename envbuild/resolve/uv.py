"""Runs uv: a request in, its answer or the reason for none out.

Sources: uv's reference (``uv pip compile``, configuration files, ``UV_*`` variables).
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from envbuild.resolve import uvtext
from envbuild.resolve.uvtext import UvFailure
from envbuild.spec.chosen_recipe import DeclaredMetadata
from envbuild.spec.python_platform import PythonTarget
from envbuild.system import host, process, tools

_TIMEOUT_S = 900.0
# Ten times as much as a large resolution takes: an index may answer without end.
_MEMORY_BYTES = 2 << 30
# uv starts a thread for each core, and its stack counts.
_STACK_BYTES = 8 << 20
_OUTPUTS = {
    "requirements.txt": ("--annotation-style", "line", "--emit-index-annotation"),
    "pylock.toml": ("--no-deps",),
}


class UvRequirement(NamedTuple):
    """A requirement, and the distribution that it is for."""

    name: str
    """Canonical name."""
    text: str
    """PEP 508."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UvRequest:
    """One run of ``uv pip compile``."""

    target: PythonTarget | None
    """None for the Python that runs envbuild."""
    requirements: tuple[UvRequirement, ...] = ()
    constraints: tuple[str, ...] = ()
    """PEP 508."""
    preferred_versions: Mapping[str, str] = field(default_factory=dict)
    """Distribution → version."""
    output: Literal["requirements.txt", "pylock.toml"] = "requirements.txt"
    """The second lists the files of the required releases alone."""
    options: tuple[str, ...] = ()
    """Further options of uv."""
    default_index: str = ""
    """Address; empty for uv's own."""
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Origin → address, for the distributions of `index_of` alone."""
    index_of: Mapping[str, str] = field(default_factory=dict)
    """Distribution → origin of the only index to ask."""
    find_links: tuple[str, ...] = ()
    """Directories and pages with wheels."""
    no_index: bool = False
    offline: bool = False
    torch_backend: str = ""
    """uv's name of PyTorch's own index (``cpu``); empty if that is not asked."""
    local_wheels: Mapping[str, Path] = field(default_factory=dict)
    """Distribution → the only wheel of it to take."""
    stubs: Mapping[str, DeclaredMetadata] = field(default_factory=dict)
    """Distribution → the only release of it, for which uv gets an empty wheel."""
    metadata: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Distribution and version → requirements, which uv then does not read from files."""
    sources: frozenset[str] = frozenset()
    """Distributions of which uv takes source archives."""
    sources_without_metadata: frozenset[str] = frozenset()
    """Distributions of which uv reads no source archive: their requirements stay unknown."""
    prefers_wheels: bool = True
    """Whether uv takes wheels alone of all distributions but `sources`; if False, either."""
    timeout_s: float = _TIMEOUT_S
    """Wall-clock limit."""
    retries: int | None = None
    """How often uv asks again; None for its own number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UvAnswer:
    """uv's output, and its warnings."""

    text: str
    warnings: tuple[str, ...]


def run_uv(request: UvRequest, directory: Path) -> UvAnswer | UvFailure:
    """Run uv once, with its cache in a directory.

    OSError: the directory cannot be written. MachineError: uv cannot be started.
    """
    # Private: uv keeps answers of indexes with their addresses, which may hold tokens.
    cache = directory / "uv"
    directory.mkdir(parents=True, exist_ok=True)
    cache.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".uv-", dir=directory) as name:
        work = Path(name)
        output = work / request.output
        _write_inputs(request, work)
        finished = process.run(
            [*_argv(request, cache), "--output-file", output, work / "pyproject.toml"],
            env=_environment(request),
            cwd=work,
            timeout_s=request.timeout_s,
        )
        if finished.ok:
            text = output.read_text(encoding="utf-8")
            return UvAnswer(text=text, warnings=tuple(uvtext.warnings(finished.stderr)))
    return uvtext.read_failure(
        finished.stderr, over_limit=_limit(request, finished), local_wheels=request.local_wheels
    )


def install_wheels(python: Path, wheels: Sequence[Path], *, timeout_s: float) -> process.Finished:
    """Install verified wheels, and nothing else, into the virtual environment of a Python; compile them.

    MachineError: uv cannot be started.
    """
    options = ["--no-deps", "--no-index", "--offline", "--no-config", "--no-cache", "--compile-bytecode"]
    uv = tools.locate("uv")
    argv: list[str | Path] = [uv, "pip", "install", "--python", python, "--color", "never", "--no-progress"]
    return process.run([*argv, *options, *wheels], env=host.environment(), timeout_s=timeout_s)


def _limit(request: UvRequest, finished: process.Finished) -> str:
    """Return the limit that ended uv; empty if none did."""
    if finished.timed_out:
        return f"{request.timeout_s:.0f} s"
    is_out_of_memory = finished.code < 0 and "memory allocation" in finished.stderr
    return f"{_MEMORY_BYTES / (1 << 30):.1f} GiB of memory" if is_out_of_memory else ""


def _write_inputs(request: UvRequest, work: Path) -> None:
    stubs = {name: _write_stub(name, release, work) for name, release in request.stubs.items()}
    for path in request.local_wheels.values():
        (work / path.name).symlink_to(path)
    text = uvtext.project(
        [requirement.text for requirement in request.requirements],
        python=request.target.version if request.target else _own_python(),
        sources=request.index_of,
        indexes=request.indexes,
        wheels={**{name: path.name for name, path in request.local_wheels.items()}, **stubs},
    )
    (work / "pyproject.toml").write_text(text, encoding="utf-8")
    text = uvtext.configuration(request.metadata, request.sources_without_metadata, request.find_links)
    (work / "uv.toml").write_text(text, encoding="utf-8")
    if request.constraints:
        (work / "constraints.txt").write_text("\n".join(request.constraints), encoding="utf-8")
    if request.preferred_versions:
        # uv prefers the versions in its output file.
        pins = (f"{name}=={version}\n" for name, version in sorted(request.preferred_versions.items()))
        (work / request.output).write_text("".join(pins), encoding="utf-8")


def _own_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _argv(request: UvRequest, cache: Path) -> list[str | Path]:
    """Return the command without its output and input; the current directory holds its files."""
    limit_bytes = _MEMORY_BYTES + _STACK_BYTES * host.cores()
    argv: list[str | Path] = ["prlimit", f"--data={limit_bytes}", "--"]
    argv += [tools.locate("uv"), "pip", "compile", "--no-header"]
    argv += ["--color", "never", "--no-progress", "--cache-dir", cache]
    argv += ["--python", sys.executable, "--no-python-downloads"]
    if request.target is not None:
        argv += ["--python-version", request.target.version]
        argv += ["--python-platform", uvtext.platform(request.target.architecture, request.target.glibc)]
    argv += ["--format", request.output, *_OUTPUTS[request.output], *request.options]
    argv += ["--no-index"] if request.no_index else []
    argv += ["--offline"] if request.offline else []
    argv += ["--torch-backend", request.torch_backend] if request.torch_backend else []
    if request.prefers_wheels:
        argv += ["--only-binary", ":all:"]
        for name in sorted(request.sources):
            argv += ["--no-binary", name]
    # uv reads no other configuration if one is named.
    argv += ["--config-file", "uv.toml"]
    argv += ["--constraints", "constraints.txt"] if request.constraints else []
    return argv


def _environment(request: UvRequest) -> dict[str, str]:
    # Addresses may hold credentials: other users see a process's arguments, not its environment.
    extra = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    if request.default_index:
        extra["UV_DEFAULT_INDEX"] = request.default_index
    if request.retries is not None:
        extra |= {"UV_HTTP_RETRIES": str(request.retries), "UV_HTTP_TIMEOUT": "10"}
    return host.environment(network=True, extra=extra)


def _write_stub(name: str, release: DeclaredMetadata, directory: Path) -> str:
    """Write a wheel that states what a release requires, and holds nothing; return its file name."""
    base = f"{name.replace('-', '_')}-{release.version}"
    extras = sorted(set(uvtext.EXTRA.findall("\n".join(release.requires))))
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {release.version}"]
    lines += [f"Requires-Dist: {text}" for text in release.requires]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    file = f"{base}-py3-none-any.whl"
    with zipfile.ZipFile(directory / file, "w") as stub:
        stub.writestr(f"{base}.dist-info/METADATA", "\n".join(lines) + "\n")
        stub.writestr(
            f"{base}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        stub.writestr(f"{base}.dist-info/RECORD", "")
    return file
