"""Candidates for shell completion, without reading YAML, since a shell waits for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.inputs.partition_names import partition_names
from envbuild.system.files import configuration_homes, environment_paths, exists, list_directory, read_input

_LIMIT_BYTES = 1 << 20


def recipe_names(kind: str = "", given: Sequence[Path] = ()) -> list[str]:
    """Return the names of all recipes, or of a kind (``mpi``, ``framework``, ``fabric``, ``site``), sorted.

    The directories `given` are searched first.
    """
    directories = [
        *given,
        *environment_paths("ENVBUILD_RECIPES"),
        *(home / "recipes" for home in configuration_homes()),
    ]
    fits: dict[str, bool] = {}
    for directory in directories:
        for name in list_directory(directory):
            path = directory / name / "recipe.yaml"
            if name not in fits and exists(path):
                content = b"" if not kind else _content(path)
                fits[name] = not kind or bool(re.search(rb"(?m)^kind: *" + kind.encode() + rb"\b", content))
    return sorted(name for name in fits if fits[name])


def base_names() -> list[str]:
    """Return the names of all base images, sorted."""
    return _stems("base-images")


def site_names() -> list[str]:
    """Return the names of all sites and of their partitions (``lumi/g``), sorted."""
    names = []
    for name in _stems("sites"):
        files = (home / "sites" / f"{name}.yaml" for home in configuration_homes())
        names += [name, *partition_names(next(filter(exists, files)))]
    return sorted(names)


def module_names(root: Path) -> list[str]:
    """Return the modules below a root, as ``NAME/VERSION``, sorted."""
    environments = root / "envs"
    return sorted(
        f"{name}/{version}"
        for name in list_directory(environments)
        for version in list_directory(environments / name)
        if exists(root / "modulefiles" / name / version)
    )


def _stems(directory: str) -> list[str]:
    files = {name for home in configuration_homes() for name in list_directory(home / directory)}
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))


def _content(path: Path) -> bytes:
    try:
        return read_input(path, limit_bytes=_LIMIT_BYTES)
    except EnvbuildError:
        return b""
