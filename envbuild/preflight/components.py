"""What is known of libraries beyond their tables: families, and what they open by name. Data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict


@cache
def _matches(pattern: str, name: str) -> bool:
    """Look once: each process of an image is asked for the same names again."""
    return re.fullmatch(pattern, name) is not None


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Family(_Row):
    """Libraries of which one process holds one, and whose users are compared with it."""

    library: str
    beside: str = ""
    """Patterns of the names of the one library, and of others that belong to it."""
    parts: str = ""
    """Pattern of the paths of its own programs and plug-ins, which nothing starts or opens
    where a host's library takes its place."""
    symbols: tuple[str, ...]
    """How the names begin that its users take from it."""

    def is_library(self, *names: str) -> bool:
        """Whether one of the names is the one library's."""
        return any(_matches(self.library, name) for name in names)

    def concerns(self, names: Sequence[str]) -> bool:
        """Whether one of the names belongs to the family."""
        return any(_matches(f"{self.library}|{self.beside or '(?!)'}", name) for name in names)

    def owns(self, path: str, *names: str) -> bool:
        """Whether a file is of no use without the image's own library."""
        return bool(re.fullmatch(self.parts or "(?!)", path)) or self.concerns(names)


class Opened(_Row):
    """Libraries that one opens by name while it runs."""

    by: str
    """Pattern of the name of what opens them."""
    names: tuple[str, ...]
    """What it opens."""
    optional: bool = False
    """Whether it does without."""
    written: bool = False
    """Whether this is so only of those files in which the name is written."""
    gpu: bool = False
    """Whether this is so only of those files that hold GPU code."""
    where: str = ""
    """Only in an image that holds a library of this pattern."""
    why: str
    hint: str = ""
    source: str
    """For people."""


class GpuFiles(_Row):
    """Whose a file with GPU code is."""

    frameworks: dict[str, str]
    """Framework → pattern of the paths of its files."""
    vendors: str
    """Pattern of the paths of what belongs to a toolkit."""


class Components(_Row):
    """The whole table."""

    families: dict[str, Family]
    """By name."""
    opened: tuple[Opened, ...]
    """In the order of the table."""
    together: tuple[str, ...]
    """Patterns of directories below which libraries are loaded before what needs them."""
    gpu_code: GpuFiles
    """Whose GPU code is."""

    def is_vendors(self, path: str) -> bool:
        """Whether a file with GPU code belongs to a toolkit."""
        return bool(re.fullmatch(self.gpu_code.vendors, path))

    def together_with(self, path: str) -> str:
        """Return the directory below which a file's package loads its own libraries; empty for none."""
        for pattern in self.together:
            found = re.match(f"({pattern})/", path)
            if found:
                return found[1]
        return ""


@cache
def text() -> str:
    """Return the table as it is written."""
    return resources.files(__package__).joinpath("components.yaml").read_text(encoding="utf-8")


@cache
def components() -> Components:
    """Return the table."""
    return Components.model_validate(yaml.load(text(), Loader=yaml.SafeLoader))  # it is the safe one


@cache
def digest() -> str:
    """Return the sha256 of the table, in hex: what a scan has looked for hangs on it."""
    return hashlib.sha256(text().encode()).hexdigest()
