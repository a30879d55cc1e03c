"""Finds and reads config.yaml of the user and of the centre.

`envbuild.system.configured` puts their values in order with those of options and variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.spec.load import Loaded, load
from envbuild.spec.yamlfile import MAX_BYTES
from envbuild.system import host
from envbuild.system.configured import ConfiguredValue, read_files_by
from envbuild.system.files import HINT_SETTINGS, is_there, read_input, settings_homes
from envbuild.system.privacy import check_settings

if TYPE_CHECKING:
    from envbuild.spec.config import Config

VARIABLE = "ENVBUILD_CONFIG"
"""Names a file in place of the user's; the centre's is read nevertheless."""
# Paths that may differ by user.
_OWN_PATHS = ("store", "apptainer", "tmpdir", "recipes", "log")
POLICIES = ("require_signature", "require_pass", "revoked", "log")
"""Keys that hold if any file has them: a user's file adds to the centre's, and loosens nothing."""


def use_files() -> None:
    """Let the values of the files count in this process, for packages below this one, too."""
    read_files_by(file_values)


def read_configs() -> tuple[Loaded[Config], ...]:
    """Return the configuration of the user, then of the centre, as far as the files exist.

    Raises all errors of both files at once (RequestError).
    """
    loaded, errors = examine_configs()
    raise_all(errors)
    return loaded


def examine_configs() -> tuple[tuple[Loaded[Config], ...], list[EnvbuildError]]:
    """Return the same files as `read_configs` without those that cannot be read, and all errors."""
    configs: list[Loaded[Config]] = []
    errors: list[EnvbuildError] = []
    for path in config_files():
        if str(path) == os.environ.get(VARIABLE) or is_there(path):
            try:
                configs.append(_read(path))
            except EnvbuildError as error:
                errors += error.each()
    return tuple(configs), errors


def config_files() -> tuple[Path, ...]:
    """Return the paths of the files: the user's, or the one that ENVBUILD_CONFIG names, then the centre's."""
    user, centre = (home / "config.yaml" for home in settings_homes())
    named = os.environ.get(VARIABLE)
    return tuple(dict.fromkeys((Path(named) if named else user, centre)))


def file_values(key: str, configs: tuple[Loaded[Config], ...] | None = None) -> list[ConfiguredValue]:
    """Return the values of a key (``store``, ``jobs.time``) in the files, by default those of this machine.

    RequestError: a file has errors, or a path in it needs a home directory that the user lacks.
    """
    values = []
    for config in read_configs() if configs is None else configs:
        for steps, value in _entries(config.value, key):
            at = config.at(*steps)
            expanded = _expanded(value, at) if key in _OWN_PATHS else value
            values.append(ConfiguredValue(value=expanded, origin=str(at)))
    return values


def _read(path: Path) -> Loaded[Config]:
    # At the start of each command the model takes 4 ms, and many users have no file.
    from envbuild.spec.config import Config  # noqa: PLC0415

    check_settings(path)
    hint = HINT_SETTINGS
    if str(path) == os.environ.get(VARIABLE):
        hint = f"{VARIABLE} names it; set it to a file that exists, or unset it"
    return load(Config, read_input(path, limit_bytes=MAX_BYTES, hint=hint), path)


def _entries(config: Config, key: str) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each value of a key with its steps in the file; nothing if the file omits the key."""
    value: Any = config
    steps = key.split(".")
    for step in steps:
        if step not in value.model_fields_set:
            return
        value = getattr(value, step)
    if isinstance(value, tuple):
        for number, entry in enumerate(value):
            yield (*steps, number), entry
    elif value is not None:
        yield tuple(steps), value


def _expanded(path: str, at: Location) -> str:
    """Return a path with the user's home directory for ``~``, and the login name for a part ``$USER``."""
    if path.startswith("~"):
        try:
            path = f"{Path.home()}{path.removeprefix('~')}"
        except RuntimeError:
            problem = f"`{path}`: user {os.geteuid()} has no home directory"
            raise RequestError(problem, at=at, hint="set HOME, or write an absolute path") from None
    return "/".join(host.user() if part == "$USER" else part for part in path.split("/"))
