"""Write the layer of a wheel directly: from the wheel into a squashfs, without a tree on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.build.bytecode import Module, bytecode_path, is_compiled
from envbuild.build.layer_writer import LayerWriter
from envbuild.build.wheels import copy_content, read_wheel
from envbuild.squashfs.writer import FilePart, StoredFile

if TYPE_CHECKING:
    from envbuild.build.wheel_destination import InstalledWheel


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelInput:
    """A wheel, and where it is installed in an image."""

    wheel: Path
    """A verified file."""
    scheme: Mapping[str, str]
    """Scheme (``purelib``, …) → absolute path of its directory in the image."""
    python: str
    """Path in the image of the Python that runs its scripts."""


class WheelContent:
    """The files of a wheel, in two steps: it is read, then what it holds is stored in a layer."""

    def __init__(self, installed: InstalledWheel, modules: Sequence[Module]) -> None:
        self._installed = installed
        self.modules = tuple(modules)
        """The modules to compile."""

    @classmethod
    def read(cls, wheel: WheelInput, sources: Path) -> WheelContent:
        """Read which files a wheel installs, and copy the modules among them to the new file `sources`.

        BuildError: the wheel is malformed or damaged, or would write outside of its directories.
        """
        installed = read_wheel(wheel.wheel, wheel.scheme, python=wheel.python)
        sites = {wheel.scheme["purelib"], wheel.scheme["platlib"]}
        modules = []
        with sources.open("xb") as copies:
            for number, file in enumerate(installed.files):
                if is_compiled(file.path, sites):
                    source = FilePart(sources, copies.tell(), file.content.size_bytes)
                    copy_content(file.content, copies)
                    installed.files[number] = replace(file, content=source)
                    modules.append(Module(path=file.path, source=source))
        return cls(installed, modules)

    def store(self, writer: LayerWriter) -> Mapping[str, StoredFile]:
        """Store its files, and return them by their paths; BuildError: the wheel is damaged."""
        files = {file.path: writer.store(file.content, file.mode) for file in self._installed.files}
        record = self._installed.record({path: file.digest for path, file in files.items()})
        return files | {record.path: writer.store(record.content, record.mode)}


def add_files_of_wheel(files: Mapping[str, StoredFile], writer: LayerWriter) -> None:
    """Add the files of a wheel to its layer, and write them out."""
    for path, file in files.items():
        writer.add_file(path, file)
    writer.flush()


def add_bytecode(
    modules: Iterable[Module], bytecode: Mapping[Module, FilePart], version: str, writer: LayerWriter
) -> None:
    """Add bytecode to a layer, beside the modules that it has; `version` is that of the Python (``3.11``)."""
    for module in sorted(modules, key=lambda module: module.path):
        path = bytecode_path(module.path, version)
        # A wheel may have a file in its place, or in that of its directory.
        has_place = not writer.has(path) and writer.can_hold(path.rpartition("/")[0])
        if module in bytecode and has_place:
            writer.add_file(path, writer.store(bytecode[module], 0o644))
