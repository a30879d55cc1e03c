"""Takes what PyPA's installer would write, and writes nothing.

Imported only where a wheel is read: it imports installer.
"""

from __future__ import annotations

import base64
import os
import posixpath
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

from installer.destinations import WheelDestination
from installer.records import Hash, RecordEntry
from installer.scripts import Script
from installer.utils import Scheme, construct_record_file, fix_shebang

from envbuild.squashfs.writer import BytesContent, Content
from envbuild.store.tree import check_directory

if TYPE_CHECKING:
    from installer.scripts import ScriptSection

# Of a script whose first line is replaced; others, such as compiled programs, may be larger.
_MAX_SCRIPT_BYTES = 16 << 20
_SCRIPT_START = b"#!python"
_MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFile:
    """A file that a wheel installs."""

    path: str
    """Path in the image, without a leading slash."""
    executable: bool
    content: Content

    @property
    def mode(self) -> int:
        """Permission bits, which let every user read it."""
        return 0o755 if self.executable else 0o644


@dataclass(slots=True, kw_only=True)
class InstalledWheel:
    """The files that a wheel installs."""

    files: list[InstalledFile]
    """All but the list of them, in the order in which installer writes them."""
    record_path: str = ""
    """Path of that list (RECORD) in the image."""
    records: list[tuple[Scheme, RecordEntry]]
    """An entry of the list for each of `files`, without its hash, then that of the list itself."""
    prefixes: dict[str, str | None]
    """Scheme → path of its directory from that of the list; None for the same directory."""

    def record(self, digests: Mapping[str, str]) -> InstalledFile:
        """Return the list of files; `digests` maps paths to SHA-256 in hexadecimal digits."""
        listed = []
        for (scheme, entry), file in zip(self.records[:-1], self.files, strict=True):
            encoded = base64.urlsafe_b64encode(bytes.fromhex(digests[file.path])).decode().rstrip("=")
            listed.append((scheme, replace(entry, hash_=Hash("sha256", encoded))))
        with construct_record_file([*listed, self.records[-1]], self.prefixes.__getitem__) as stream:
            content = BytesContent(stream.read())
        return InstalledFile(path=self.record_path, executable=False, content=content)


class Destination(WheelDestination):
    """Collects the files of one wheel; as `SchemeDictionaryDestination`, it lets no file replace another."""

    def __init__(self, scheme: Mapping[str, str], python: str, member: Callable[[str], Content]) -> None:
        self._scheme, self._python, self._member = scheme, python, member
        self._files: set[str] = set()
        self._directories: set[str] = set()
        self.installed = InstalledWheel(files=[], records=[], prefixes={})

    def write_script(self, name: str, module: str, attr: str, section: ScriptSection) -> RecordEntry:
        """Take a program that calls an entry point."""
        name, script = Script(name, module, attr, section).generate(self._python, "posix")
        return self._add(Scheme("scripts"), name, BytesContent(script), executable=True)

    def write_file(
        self, scheme: Scheme, path: str | os.PathLike[str], stream: BinaryIO, is_executable: bool
    ) -> RecordEntry:
        """Take a file; a script that `#!python` begins gets the image's Python."""
        name = os.fspath(path)
        content = self._member(stream.name) if isinstance(stream, zipfile.ZipExtFile) else None
        if scheme == "scripts" and stream.read(len(_SCRIPT_START)) == _SCRIPT_START:
            if content is not None and content.size_bytes > _MAX_SCRIPT_BYTES:
                raise ValueError(f"the script {name} has more than {_MAX_SCRIPT_BYTES} bytes")
            with fix_shebang(stream, self._python) as script:
                content = BytesContent(script.read())
        return self._add(scheme, name, content or BytesContent(stream.read()), executable=is_executable)

    def finalize_installation(
        self, scheme: Scheme, record_file_path: str, records: Iterable[tuple[Scheme, RecordEntry]]
    ) -> None:
        """Keep the entries of the list of files, which have no hashes yet."""
        self.installed.record_path = self._claim(scheme, record_file_path)
        self.installed.records = list(records)
        for name, directory in self._scheme.items():
            is_same = name == scheme
            self.installed.prefixes[name] = (
                None if is_same else posixpath.relpath(directory, self._scheme[scheme]) + "/"
            )

    def _add(self, scheme: Scheme, name: str, content: Content, *, executable: bool) -> RecordEntry:
        path = self._claim(scheme, name)
        self.installed.files.append(InstalledFile(path=path, executable=executable, content=content))
        return RecordEntry(name, None, content.size_bytes)

    def _claim(self, scheme: Scheme, name: str) -> str:
        """Return the path of a file in the image; ValueError if it cannot be there."""
        directory = posixpath.normpath(self._scheme[scheme])
        path = posixpath.normpath(posixpath.join(directory, name))
        if not path.startswith(f"{directory.rstrip('/')}/"):
            raise ValueError(f"it would write {name!r} outside of `{directory}`")
        path = path.lstrip("/")
        if path in self._files or path in self._directories:
            raise ValueError(f"{name!r} would replace another file")
        self._files.add(path)
        above, _, last = path.rpartition("/")
        while True:
            if len(os.fsencode(last)) > _MAX_NAME_BYTES:
                raise ValueError(f"a name in {name!r} has more than {_MAX_NAME_BYTES} bytes")
            if not above or above in self._directories:
                return path
            if above in self._files:
                raise ValueError(f"{name!r} would lie below a file")
            check_directory(above)
            self._directories.add(above)
            above, _, last = above.rpartition("/")
