"""Packs commits of git repositories as source archives.

The same commit makes the same bytes everywhere: the archive has no times, no owners and no compression that
depends on a library. Nothing of the repository is run.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import os
import re
import shutil
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from packaging.version import Version

from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, some
from envbuild.events import task
from envbuild.lock.model import PythonPin
from envbuild.resolve.context import NOT_HERE_HINT, ResolveContext, Upgrade, cannot_write
from envbuild.resolve.distributions import DistFile
from envbuild.resolve.files import WrongBytes
from envbuild.resolve.obtain import local_copy
from envbuild.resolve.source_archives import SourceMetadata, read_archive
from envbuild.resolve.uv import UvRequest
from envbuild.spec.chosen_recipe import DeclaredMetadata
from envbuild.spec.fields import repository_address
from envbuild.spec.python_request import PythonRequest
from envbuild.spec.requirements import Repository, RequirementEntry
from envbuild.spec.tomlfile import read_toml
from envbuild.system import host, process
from envbuild.system.files import copy, sha256
from envbuild.system.network import dead_proxy
from envbuild.system.redaction import redact, redact_text
from envbuild.system.repositories import check_is_inside
from envbuild.system.space import refuse_full
from envbuild.system.tarmembers import TarMembers

_TIMEOUT_S = 900.0
_MAX_BYTES = 1 << 30  # of a packed tree
_MAX_FILES = 200_000
_MAX_WRITTEN_BYTES = 2 << 30  # of a file that git writes: a pack, or a tree as tar
_MAX_GIT_MEMORY_BYTES = 1 << 30
_MAX_CONFIGURATION_BYTES = 256 << 10
_MAX_LINE = 1000  # of setup.cfg: configparser takes quadratic time for a line
_MAX_REPOSITORIES = 100  # of a tree: its own, and those of submodules
_STORED = 0xFFFF  # bytes of a block of deflate that is not compressed
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_SUBMODULE = "160000 "  # mode of a submodule in a tree
_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_PLAIN = re.compile(r"[0-9][A-Za-z0-9.+!-]*")
_NO_MEMORY = re.compile(r"\bout of memory\b|malloc failed", re.IGNORECASE)
_GIT_VARIABLES = ("SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_SSL_CAINFO")
_WHEEL = "build a wheel elsewhere, and name that (`{wheel: PATH}`)"
_GIT = "install git (`apt-get install git`), or build a wheel elsewhere and name that (`{wheel: PATH}`)"


@dataclass(frozen=True, slots=True)
class _File:
    """A file or link of a tree, whose content stays on the disk."""

    archive: Path
    """A plain tar, as git writes it."""
    offset: int
    size_bytes: int
    type: bytes
    linkname: str
    is_executable: bool

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open its content, of which `size_bytes` count."""
        with self.archive.open("rb") as stream:
            stream.seek(self.offset)
            yield stream


_Files = dict[PurePosixPath, _File]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArchive:
    """A commit as a source archive in the cache of locked files."""

    file: DistFile
    metadata: SourceMetadata


@dataclass(slots=True)
class Commits:
    """The source of distributions that are built from a commit; each has an archive of it alone."""

    request: PythonRequest
    context: ResolveContext
    archives: dict[str, SourceArchive] = field(init=False, default_factory=dict)
    """Distribution → its archive; `prepare` fills it."""

    def owns(self, name: str) -> bool:
        """Return whether a commit is named for a distribution."""
        return name in self.request.commits

    def origin(self, name: str) -> str:
        """Return the logical origin: the commit."""
        repository = self.request.commits[name].repository
        return repository.origin if repository is not None else ""

    def prepare(self, previous: Sequence[PythonPin], upgrade: Upgrade) -> Iterator[EnvbuildError]:
        """Archive each commit; a locked archive that is here is used as it is.

        Yield an error for a commit that cannot be had, that states no version that can be read, or whose
        version a requirement excludes.
        """
        del upgrade  # a commit does not change
        pins = {pin.name: pin for pin in previous}
        for name, entry in self.request.commits.items():
            try:
                self.archives[name] = self._archive(name, entry, pins.get(name))
            except EnvbuildError as error:
                yield from error.each()
        for entry in self.request.written:
            archive = self.archives.get(entry.name)
            if archive and not entry.requirement.specifier.contains(archive.file.version, prereleases=True):
                problem = f"`{entry.text}` excludes {archive.file.version}, the version of the commit"
                yield RequestError(problem, at=entry.at, hint="change one of them")

    def _archive(self, name: str, entry: RequirementEntry, pin: PythonPin | None) -> SourceArchive:
        repository = entry.repository
        if repository is None:
            raise AssertionError("an entry of a commit has a repository")
        path = None
        if pin is not None and repository.admits(pin.origin, pin.version):
            path = local_copy(pin, self.context)
        if pin is None or path is None:
            directory = self.request.path.parent
            pin = archive_commit(name, repository, entry.at, self.context, directory=directory)
            path = self.context.files.path(pin)
        file = DistFile(
            name=pin.name,
            version=pin.version,
            file_name=pin.file,
            address=str(self.context.files.path(pin)),
            sha256=pin.sha256,
            size_bytes=pin.size_bytes,
        )
        return SourceArchive(file=file, metadata=read_archive(path, at=entry.at))

    def add_to(self, request: UvRequest) -> UvRequest:
        """Let uv see an empty wheel in place of each archive."""
        stubs = {
            name: DeclaredMetadata(version=archive.file.version, requires=archive.metadata.requires)
            for name, archive in self.archives.items()
        }
        return replace(
            request,
            stubs={**request.stubs, **stubs},
            sources=request.sources - stubs.keys(),
            sources_without_metadata=request.sources_without_metadata - stubs.keys(),
        )

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the archive of each distribution."""
        return {name: [self.archives[name].file] for name in versions if name in self.archives}

    def remake(self, pin: PythonPin) -> bool:
        """Archive the commit of a pin again; return whether the pin is that of a commit which is named.

        RequestError: the commit makes another archive than the locked one, or as `archive_commit`.
        """
        entry = self.request.commits.get(pin.name)
        repository = entry.repository if entry is not None else None
        if entry is None or repository is None or repository.origin != pin.origin:
            return False
        directory = self.request.path.parent
        again = archive_commit(pin.name, repository, entry.at, self.context, directory=directory)
        if again.sha256 != pin.sha256:
            hint = f"`envbuild lock SPEC --upgrade {pin.name}` locks it anew"
            commit = f"commit {repository.commit[:12]} of `{pin.name}`"
            problem = f"{commit} produces a different archive than the locked one"
            raise RequestError(problem, at=entry.at, hint=hint)
        return True


def archive_commit(
    name: str, repository: Repository, at: Location, context: ResolveContext, *, directory: Path
) -> PythonPin:
    """Fetch one commit, put its source archive into the cache, and return its pin.

    Repositories of this machine, submodules too, are read only below a directory, that of the spec.
    """
    if context.offline:
        problem = f"offline: commit {repository.commit[:12]} of `{name}` is not on this machine"
        raise RequestError(problem, at=at, hint=NOT_HERE_HINT)
    git = host.find_program("git", hint=_GIT)
    with tempfile.TemporaryDirectory(prefix=".git-", dir=_made(context.cache_dir)) as work_name:
        work = Path(work_name)
        with task(context.emit, f"fetch:{name}", f"fetch {name} at {repository.commit[:12]}"):
            files = _fetch_tree(git, work, repository, at, directory)
        if pointers := sorted(str(path) for path, file in files.items() if _is_lfs_pointer(file)):
            problem = f"files of `{name}` are in Git LFS, which is not fetched: {some(pointers)}"
            raise RequestError(problem, at=at, hint=_WHEEL)
        version = repository.version or _version(files, name, at)
        base = f"{name.replace('-', '_')}-{version}"
        archive = work / "archive.tar.gz"
        try:
            with archive.open("wb") as stream:
                _write_archive(files, base, stream)
        except OSError as error:
            raise cannot_write(context.cache_dir, error) from error
        pin = PythonPin(
            name=name,
            version=version,
            origin=repository.origin,
            file=f"{base}.tar.gz",
            size_bytes=archive.stat().st_size,
            sha256=sha256(archive),
            layer="python",
            requires=(),
        )
        try:
            with context.files.adding(pin) as part:
                copy(archive, part)
        except WrongBytes as error:
            raise MachineError(f"`{pin.file}` was not written whole", hint="run it again") from error
        return pin


def _fetch_tree(git: Path, work: Path, repository: Repository, at: Location, directory: Path) -> _Files:
    """Return the files of a commit and of its submodules, at the recorded commits, by relative path."""
    files: _Files = {}
    size_bytes = 0
    repositories = [(PurePosixPath(), repository)]
    for number, (prefix, part) in enumerate(repositories):
        check_is_inside(part.url, directory, at)
        fetched = _Fetched(git=git, directory=work / str(number), repository=part, at=at)
        fetched.fetch()
        own = fetched.files()
        files |= {prefix / path: file for path, file in own.items()}
        size_bytes += sum(file.size_bytes for file in own.values())
        if size_bytes > _MAX_BYTES or len(files) > _MAX_FILES:
            raise _too_large(repository, at)
        repositories += [(prefix / path, submodule) for path, submodule in fetched.submodules()]
        shutil.rmtree(fetched.directory / "objects")  # the tree is a tar now
        if len(repositories) > _MAX_REPOSITORIES:
            problem = f"{redact(repository.url)} has more than {_MAX_REPOSITORIES - 1} submodules"
            raise RequestError(problem, at=at, hint=_WHEEL)
    return files


def _too_large(repository: Repository, at: Location) -> RequestError:
    limits = f"more than {_MAX_BYTES >> 20} MiB or {_MAX_FILES} files"
    problem = f"the tree of {redact(repository.url)} has {limits}"
    return RequestError(problem, at=at, hint=_WHEEL)


def _submodule_address(address: str, parent: str) -> str:
    """Return the address of a submodule, which may be relative to that of its repository (gitmodules(5))."""
    if not address.startswith(("./", "../")):
        return address
    base = parent.rstrip("/")
    while address.startswith(("./", "../")):
        step, _, address = address.partition("/")
        base = base.rpartition("/")[0] if step == ".." else base
    return f"{base}/{address}"


def _is_fetched(address: str, parent: str) -> bool:
    """Return whether a submodule's address may be asked; files of this machine only for a parent here."""
    try:
        repository_address(address)
    except ValueError:
        return False
    return parent.startswith("file:") or not address.startswith("file:")


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(directory, error) from error
    return directory


def _reason(done: process.Finished) -> str:
    """Return what git says is wrong, in one line: the first lines; its advice follows in others."""
    if done.timed_out:
        return f"it did not end within {_TIMEOUT_S:.0f} s"
    lines = [line.strip().removeprefix("fatal: ") for line in done.stderr.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("Could not read from remote repository")]
    return (
        "; ".join(causes[: 2 if causes[0].startswith("remote:") else 1]) if causes else "git says no reason"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetched:
    """A bare repository that holds one commit."""

    git: Path
    directory: Path
    repository: Repository
    at: Location

    def fetch(self) -> None:
        commit = self.repository.commit
        self.directory.mkdir()
        self._run("init", "--quiet", "--bare", ".")
        # Attributes of the tree could leave files out, and write names of branches into others.
        (self.directory / "info").mkdir(exist_ok=True)
        (self.directory / "info/attributes").write_text("* -export-ignore -export-subst\n")
        done = self._git("fetch", "--quiet", "--depth=1", "--no-tags", "--", self.repository.url, commit)
        self._check_is_whole(done)
        if not done.ok:
            if error := dead_proxy(self.repository.url):
                raise error
            reason = redact_text(_reason(done))
            problem = f"git cannot fetch commit {commit} of {redact(self.repository.url)}: {reason}"
            hint = "the commit has to be in the repository, and the address one that `git fetch` can ask"
            raise RequestError(problem, at=self.at, hint=hint)
        if self._run("rev-parse", "FETCH_HEAD^{commit}").strip() != commit:
            problem = f"{commit} of {redact(self.repository.url)} is not a commit"
            raise RequestError(problem, at=self.at, hint="name the commit itself, not a tag")

    def files(self) -> _Files:
        """Return the files of the commit's tree, or of its subdirectory, by relative path."""
        self._run("archive", "--format=tar", f"--output={self._tar}", "FETCH_HEAD")
        below = PurePosixPath(self.repository.subdirectory or ".")
        files: _Files = {}
        size_bytes = 0
        try:
            with self._tar.open("rb") as stream:
                for member in TarMembers(stream):
                    path = PurePosixPath(member.name)
                    if not path.is_relative_to(below) or not (member.isreg() or member.issym()):
                        continue
                    size_bytes += member.size
                    if size_bytes > _MAX_BYTES or len(files) == _MAX_FILES:
                        raise _too_large(self.repository, self.at)
                    files[path.relative_to(below)] = _File(
                        archive=self._tar,
                        offset=member.offset_data,
                        size_bytes=member.size,
                        type=member.type,
                        linkname=member.linkname,
                        is_executable=bool(member.mode & 0o100),
                    )
        except tarfile.TarError as error:
            problem = f"the tree of {redact(self.repository.url)} cannot be packed: {error}"
            raise RequestError(problem, at=self.at, hint=_WHEEL) from error
        if not files:
            problem = f"the commit has no directory `{self.repository.subdirectory}`"
            raise RequestError(problem, at=self.at, hint="correct `subdirectory`")
        return files

    def submodules(self) -> Iterator[tuple[PurePosixPath, Repository]]:
        """Yield relative path and repository of each submodule in the tree, or in its subdirectory."""
        below = PurePosixPath(self.repository.subdirectory or ".")
        commits = {}
        for entry in self._run("ls-tree", "-r", "-z", "FETCH_HEAD").split("\0"):
            description, _, path = entry.partition("\t")
            if description.startswith(_SUBMODULE) and PurePosixPath(path).is_relative_to(below):
                commits[path] = description.split()[2]
        addresses = self._submodule_addresses() if commits else {}
        for path, commit in sorted(commits.items()):
            address = _submodule_address(addresses.get(path, ""), self.repository.url)
            if not _is_fetched(address, self.repository.url):
                where = f"the submodule `{path}` of {redact(self.repository.url)}"
                problem = f"{where} has the address `{redact(address)}`, which is not fetched"
                hint = f"only https and ssh addresses are fetched, without passwords; {_WHEEL}"
                raise RequestError(problem, at=self.at, hint=hint)
            yield PurePosixPath(path).relative_to(below), Repository(url=address, commit=commit)

    def _submodule_addresses(self) -> dict[str, str]:
        """Return what ``.gitmodules`` says: path of a submodule → its address."""
        pattern = r"^submodule\..*\.(path|url)$"
        read = self._git("config", "-z", "--blob=FETCH_HEAD:.gitmodules", "--get-regexp", pattern)
        paths, addresses = {}, {}
        for entry in read.stdout.split("\0"):
            key, _, value = entry.partition("\n")
            name, _, kind = key.rpartition(".")
            if kind == "path":
                paths[name] = value
            elif kind == "url":
                addresses[name] = value
        return {path: addresses.get(name, "") for name, path in paths.items()}

    def _run(self, *words: str) -> str:
        done = self._git(*words)
        self._check_is_whole(done)
        if not done.ok:
            problem = f"`git {words[0]}` failed: {redact_text(_reason(done))}"
            raise MachineError(problem, hint="see the git of this machine")
        return done.stdout

    def _check_is_whole(self, done: process.Finished) -> None:
        """Raise an error if git was ended by a limit: of a file that it wrote, or of its memory."""
        written = (self._tar, *(self.directory / "objects/pack").glob("*"))
        is_cut = any(path.stat().st_size >= _MAX_WRITTEN_BYTES for path in written if path.exists())
        if not done.ok and (is_cut or _NO_MEMORY.search(done.stderr)):
            raise _too_large(self.repository, self.at)

    @property
    def _tar(self) -> Path:
        return self.directory / "tree.tar"

    def _git(self, *words: str) -> process.Finished:
        # The user's configuration counts, for proxies and credentials; nothing of it may change the tree.
        fixed = ["core.attributesFile=/dev/null", "core.hooksPath=/dev/null", "protocol.ext.allow=never"]
        # One pack, whose size is limited; large files are not held in memory, nor by a thread for each core.
        fixed += ["fetch.unpackLimit=1", "core.bigFileThreshold=16m", "pack.threads=4"]
        options = [word for setting in fixed for word in ("-c", setting)]
        extra = {"GIT_TERMINAL_PROMPT": "0", "GIT_ATTR_NOSYSTEM": "1"}
        extra |= {name: os.environ[name] for name in _GIT_VARIABLES if name in os.environ}
        limits = [f"--fsize={_MAX_WRITTEN_BYTES}", f"--data={_MAX_GIT_MEMORY_BYTES}"]
        done = process.run(
            ["prlimit", *limits, "--", self.git, *options, *words],
            env=host.environment(network=True, extra=extra),
            cwd=self.directory,
            timeout_s=_TIMEOUT_S,
        )
        if not done.ok:
            refuse_full("git failed", done.stderr)
        return done


def _version(files: _Files, name: str, at: Location) -> str:
    """Return the version that a tree states; a build may state another, and then fails."""
    try:
        project = read_toml(_text(files, "pyproject.toml")).get("project", {})
        version = project.get("version") if isinstance(project, dict) else None
        if version is None:
            text = _text(files, "setup.cfg")
            if any(len(line) > _MAX_LINE for line in text.splitlines()):
                raise ValueError("it has a line that no setup.cfg has")
            setup = configparser.RawConfigParser()
            setup.read_string(text)
            version = setup.get("metadata", "version", fallback="")
        if isinstance(version, str) and _PLAIN.fullmatch(version):
            return str(Version(version))
    except (configparser.Error, ValueError):
        pass
    raise RequestError(
        f"neither `pyproject.toml` nor `setup.cfg` of the commit states the version of `{name}`",
        at=at,
        hint='write it beside the commit, in the spec: `{name: …, git: …, commit: …, version: "1.0"}`',
    )


def _text(files: _Files, name: str) -> str:
    file = files.get(PurePosixPath(name))
    if file is None or file.size_bytes > _MAX_CONFIGURATION_BYTES:
        return ""
    with file.open() as content:
        return content.read(file.size_bytes).decode()


def _is_lfs_pointer(file: _File) -> bool:
    with file.open() as content:
        return content.read(min(file.size_bytes, len(_LFS_POINTER))) == _LFS_POINTER


def _write_archive(files: _Files, base: str, target: BinaryIO) -> None:
    """Write a compressed tar of files in one directory, in the order of their paths."""
    with (
        _StoredGzip(target) as sink,
        tarfile.TarFile(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, file in sorted(files.items()):
            entry = tarfile.TarInfo(f"{base}/{path}")
            entry.type, entry.linkname, entry.size = file.type, file.linkname, file.size_bytes
            entry.mode = 0o755 if file.is_executable else 0o644
            with file.open() as content:
                tar.addfile(entry, content)
            tar.members = []  # type: ignore[attr-defined]  # otherwise they stay in memory


class _StoredGzip(io.RawIOBase):
    """Writes gzip without compression: its bytes do not depend on the version of a library."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._rest = bytearray()
        self._checksum = self._size = 0
        target.write(_GZIP_HEAD)

    def write(self, data: bytes) -> int:  # type: ignore[override]  # tarfile writes nothing else
        self._checksum = zlib.crc32(data, self._checksum)
        self._size += len(data)
        self._rest += data
        # The last block is marked as such: the one that is full now may be the last.
        while len(self._rest) > _STORED:
            self._block(is_last=False)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._block(is_last=True)
            self._target.write(struct.pack("<II", self._checksum, self._size & 0xFFFFFFFF))
        super().close()

    def tell(self) -> int:
        return self._size

    def _block(self, *, is_last: bool) -> None:
        block = bytes(self._rest[:_STORED])
        del self._rest[:_STORED]
        self._target.write(struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF) + block)
