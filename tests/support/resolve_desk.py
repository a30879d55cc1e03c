"""What a test of resolving works with: a Debian archive, a Python index, caches, and what was reported."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, Location
from envbuild.events import Event, TaskStarted, Warned
from envbuild.lock.model import DebPin, Lock, PythonPin, Target, ToolPin
from envbuild.resolve.aptsources import AptSource
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.fetch import fetch, origins_of
from envbuild.resolve.files import FileCache
from envbuild.resolve.lock import make_lock
from envbuild.resolve.origins import Machine, PythonSources
from envbuild.spec.requirements import ExplicitWheel, RequirementEntry
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.site import Site
from tests.support.mirrors import Mirror, digest, mirror, write_deb, write_index, write_lists, write_wheel
from tests.support.resolved_specs import resolved

TOOLS = (ToolPin(name="uv", version="1", digest="sha256:" + "a" * 64),)
PLATFORM = "cp311-cp311-manylinux_2_28_x86_64"


class Desk:
    """A Debian archive, a Python index, a directory for caches, and the events of the last lock."""

    def __init__(self, directory: Path, server: Mirror) -> None:
        self.directory = directory
        self.server = server
        self.archive = server.root / "debian"
        self.wheels = directory / "wheels"
        self.files = FileCache(directory / "files")
        self.events: list[Event] = []
        self.site: Site | None = None
        self.stanzas = {
            "essential": write_deb(
                self.archive, "small-base", Essential="yes", Priority="required", Depends="libsmall"
            ),
            "needed": write_deb(self.archive, "libsmall"),
            "required": write_deb(self.archive, "mount-tool", Priority="required"),
            "apt": write_deb(self.archive, "apt", Priority="important"),
            "python": write_deb(self.archive, "python3", "3.11.2-1", Depends="python3.11"),
            "python3.11": write_deb(self.archive, "python3.11", "3.11.2-6"),
            "git": write_deb(self.archive, "git", "1:2.39-1", Depends="libcurl", Recommends="less"),
            "libcurl": write_deb(self.archive, "libcurl"),
            "less": write_deb(self.archive, "less"),
            "editor": write_deb(self.archive, "nano", Provides="editor, pico"),
            "other editor": write_deb(self.archive, "vim", Provides="editor"),
        }
        self.publish()

    def publish(self) -> None:
        write_lists(self.archive, "bookworm", list(self.stanzas.values()), architectures=("amd64", "arm64"))

    def index(self, **changes: Any) -> None:
        """Write the Python index; `changes` are further wheels: name → version."""
        made = [
            write_wheel(self.wheels, "alpha", "1.0", requires=["gamma>=1", "extra-only; extra == 'more'"]),
            write_wheel(self.wheels, "gamma", "1.0"),
            write_wheel(self.wheels, "gamma", "1.5"),
            write_wheel(self.wheels, "extra-only", "1.0"),
            write_wheel(self.wheels, "win", "1.0", tag="cp311-cp311-win_amd64"),
            write_wheel(self.wheels, "beta", "1.0", requires=["gamma<1.2"]),
            *(write_wheel(self.wheels, name, version) for name, version in changes.items()),
        ]
        write_index(self.server.root, made)

    def archive_only(self, name: str) -> None:
        """Let the index have a distribution without wheels."""
        archive = self.server.root / f"files/{name}-1.0.tar.gz"
        archive.write_bytes(b"not even an archive")
        page = self.server.root / f"simple/{name}/index.html"
        page.parent.mkdir()
        page.write_text(f'<a href="/files/{archive.name}#sha256={digest(archive)}">{archive.name}</a>')

    def add_source(self, name: str, version: str = "1.0", *, under: str = "simple", **files: str) -> None:
        """Let the index have a source archive; `files` have `_` for dots and `__` for slashes."""
        archive = self.server.root / f"files/{name}-{version}.tar.gz"
        # Without compression: the bytes, whose digest is recorded, do not depend on the release of zlib.
        stream = gzip.GzipFile(archive, "wb", compresslevel=0, mtime=0)
        with stream, tarfile.open(fileobj=stream, mode="w") as tar:
            for file, content in files.items():
                member = tarfile.TarInfo(f"{name}-{version}/{file.replace('__', '/').replace('_', '.')}")
                member.size = len(content.encode())
                tar.addfile(member, io.BytesIO(content.encode()))
        page = self.server.root / f"{under}/{name}/index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as listing:
            listing.write(f'<a href="/files/{archive.name}#sha256={digest(archive)}">{archive.name}</a>\n')

    def machine(self) -> Machine:
        source = AptSource(
            uris=(f"{self.server.address}/debian",),
            suites=("bookworm",),
            components=("main",),
            signed_by="",
            trusted=True,
        )
        return Machine(apt=(source,), python=PythonSources(indexes=(f"{self.server.address}/simple",)))

    def with_links(self, *directories: Path) -> Machine:
        machine = self.machine()
        links = tuple(map(str, directories))
        return replace(machine, python=replace(machine.python, find_links=links))

    def resolved(self, **settings: Any) -> ResolvedSpec:
        return resolved(site=self.site, **settings)

    def lock(
        self,
        spec: ResolvedSpec,
        previous: Lock | None = None,
        *,
        other_targets: Sequence[Target] = (),
        upgrade: Sequence[str] | None = None,
        upgrades_system_alone: bool = False,
        offline: bool = False,
        sources: Sequence[Path] = (),
        machine: Machine | None = None,
    ) -> Lock:
        self.events.clear()
        return make_lock(
            spec,
            previous=previous,
            other_targets=other_targets,
            upgrade=upgrade,
            upgrades_system_alone=upgrades_system_alone,
            tools=TOOLS,
            context=ResolveContext(
                machine=machine or self.machine(),
                cache_dir=self.directory / "cache",
                files=self.files,
                emit=self.events.append,
                offline=offline,
                directories=tuple(sources),
            ),
        )

    def fetch(self, spec: ResolvedSpec, lock: Lock, machine: Machine | None = None) -> FileCache:
        context = ResolveContext(
            machine=machine or self.machine(),
            cache_dir=self.directory / "cache",
            files=self.files,
            emit=self.events.append,
        )
        fetch(all_pins(lock), origins_of(spec), context)
        return self.files

    def error(self, spec: ResolvedSpec, **options: Any) -> EnvbuildError:
        with pytest.raises(EnvbuildError) as caught:
            self.lock(spec, **options)
        return caught.value

    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Warned)]

    def hints(self) -> list[str | None]:
        return [event.hint for event in self.events if isinstance(event, Warned)]

    def details(self) -> list[str]:
        return [event.detail for event in self.events if isinstance(event, Warned)]

    def scopes(self) -> set[str]:
        tasks = {event.task for event in self.events if isinstance(event, TaskStarted)}
        return tasks - {"resolve"}


def all_pins(lock: Lock) -> tuple[DebPin | PythonPin, ...]:
    return (*lock.base_debs, *lock.system_debs, *lock.python)


def versions(lock: Lock) -> dict[str, str]:
    return {pin.name: pin.version for pin in all_pins(lock)}


def entry_of_wheel(path: Path, address: str = "", *, has_declared_digest: bool = False) -> RequirementEntry:
    """Return the requirement of a spec that names a wheel itself."""
    name, version, *_ = path.name.split("-")
    wheel = ExplicitWheel(
        file=path.name,
        sha256=digest(path),
        address=address or str(path),
        has_declared_digest=has_declared_digest,
    )
    at = Location(path=Path("spec.yaml"), line=6, column=3)
    return RequirementEntry(text=f"{name}==={version}", at=at, hashes=frozenset({wheel.sha256}), wheel=wheel)


def write_torch(desk: Desk) -> Path:
    """Put a framework with an accelerator's libraries into the plain index.

    Return a directory with its build for cpu.
    """
    made = [
        write_wheel(desk.wheels, "torch", "2.13.0", requires=["nvidia-cublas"], tag=PLATFORM),
        write_wheel(desk.wheels, "nvidia-cublas", "13.0"),
    ]
    write_index(desk.server.root, made)
    directory = desk.directory / "own"
    write_wheel(directory, "torch", "2.13.0+cpu", requires=["gamma"], tag=PLATFORM)
    return directory


@contextmanager
def open_desk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Yield a desk whose server runs."""
    # A proxy of this machine must not stand between us and the loopback device.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with mirror(directory / "served") as server:
        desk = Desk(directory, server)
        desk.index()
        yield desk
