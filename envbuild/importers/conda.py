"""The table of conda's packages."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from envbuild.spec.load import load
from envbuild.spec.model import Model


class CondaTable(Model):
    """Names in a spec for packages of conda."""

    wheels: dict[str, str]
    """conda's name → a distribution, perhaps with extras."""
    debian: dict[str, str]
    """conda's name → a Debian package."""
    others: dict[str, str]
    """Name in another distribution → a Debian package."""
    cuda: tuple[str, ...]
    """Packages whose version is a release of CUDA."""
    skipped: tuple[str, ...]
    """Patterns of names that an image does not need."""


def conda_table() -> CondaTable:
    """Return the table."""
    file = resources.files(__package__) / "conda.yaml"
    return load(CondaTable, file.read_bytes(), Path("conda.yaml")).value
