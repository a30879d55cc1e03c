"""Table of library families, of libraries opened by name, and of files with GPU code."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict

from envbuild.jobs.envbuild_libraries import LIBRARIES


@cache
def _matches(pattern: str, name: str) -> bool:
    """Return whether a name matches; cached, since all processes of an image ask for the same names."""
    return re.fullmatch(pattern, name) is not None


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Family(_Row):
    """A library that a process should hold once, and whose users are compared with it."""

    library: str
    """Pattern of the names of the library: that of `LIBRARIES`."""
    beside: str = ""
    """Pattern of the names of others that belong to it."""
    parts: str = ""
    """Pattern of the paths of its own programs and plug-ins; nothing uses them beside a host's library."""
    symbols: tuple[str, ...]
    """Prefixes of the symbols that its users take from it."""

    def is_library(self, *names: str) -> bool:
        """Whether one of the names is the library's."""
        return any(_matches(self.library, name) for name in names)

    def concerns(self, names: Sequence[str]) -> bool:
        """Whether one of the names belongs to the family."""
        return any(_matches(f"{self.library}|{self.beside or '(?!)'}", name) for name in names)

    def owns(self, path: str, *names: str) -> bool:
        """Whether a file is useless without the image's own library."""
        return bool(re.fullmatch(self.parts or "(?!)", path)) or self.concerns(names)


class DlopenRule(_Row):
    """Libraries that a library opens by name while it runs."""

    opener: str
    """Pattern of the name of the library that opens them."""
    names: tuple[str, ...]
    optional: bool = False
    """Whether the opener works without them."""
    name_in_file: bool = False
    """Whether only openers that contain the name open it."""
    gpu: bool = False
    """Whether only openers with GPU code open them."""
    image_holds: str = ""
    """Pattern of a library; the rule counts only in images that hold one."""
    why: str
    hint: str = ""
    source: str

    def opens(self, *names: str) -> bool:
        """Whether one of the names is an opener's."""
        return any(_matches(self.opener, name) for name in names)


class GpuFiles(_Row):
    """Owners of files with GPU code."""

    frameworks: dict[str, str]
    """Framework → pattern of the paths of its files."""
    vendors: str
    """Pattern of the paths of files that belong to a toolkit."""


class OptionalFiles(_Row):
    """Files without which their package works."""

    path: str
    """Pattern of their paths."""
    why: str
    source: str


class Supplier(_Row):
    """Libraries, and what brings them."""

    names: str
    """Pattern of their names."""
    hint: str
    source: str


class Components(_Row):
    """The whole table."""

    families: dict[str, Family]
    dlopens: tuple[DlopenRule, ...]
    self_loading: tuple[str, ...]
    """Patterns of directories whose packages load their own libraries before modules need them."""
    gpu_code: GpuFiles
    compilers: str
    """Pattern of the names of compilers' run-time libraries."""
    accelerators: str
    """Pattern of the names of accelerators' libraries."""
    suppliers: tuple[Supplier, ...]
    optional: tuple[OptionalFiles, ...]

    def is_of_compiler(self, *names: str) -> bool:
        """Return whether one of the names is a compiler's run-time library."""
        return any(_matches(self.compilers, name) for name in names)

    def is_of_accelerator(self, name: str) -> bool:
        """Return whether a name is an accelerator's library."""
        return _matches(self.accelerators, name)

    def supplier_hint(self, name: str) -> str:
        """Return what brings a library that is missing; empty if that is not known."""
        return next((row.hint for row in self.suppliers if _matches(row.names, name)), "")

    def is_optional(self, path: str) -> bool:
        """Return whether the package of a file works without it."""
        return any(re.fullmatch(row.path, path) for row in self.optional)

    def is_vendors(self, path: str) -> bool:
        """Whether a file with GPU code belongs to a toolkit."""
        return bool(re.fullmatch(self.gpu_code.vendors, path))

    def self_loading_directory(self, path: str) -> str:
        """Return the directory below which a file's package loads its own libraries; empty without one."""
        matches = (re.match(f"({pattern})/", path) for pattern in self.self_loading)
        return next((match[1] for match in matches if match), "")


@cache
def text() -> str:
    """Return the text of the table."""
    return resources.files(__package__).joinpath("components.yaml").read_text(encoding="utf-8")


@cache
def components() -> Components:
    """Return the table."""
    table = yaml.load(text(), Loader=yaml.SafeLoader)
    for name, family in table["families"].items():
        family["library"] = LIBRARIES[name]
    return Components.model_validate(table)


@cache
def digest() -> str:
    """Return the sha256 of the table and the names of libraries, in hex: it decides what a scan keeps."""
    return hashlib.sha256(f"{json.dumps(LIBRARIES, sort_keys=True)}\n{text()}".encode()).hexdigest()
