"""Shows the configuration: each value, and what sets it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.errors import EnvbuildError, MachineError
from envbuild.inputs.config import POLICIES, config_files, examine_configs, file_values
from envbuild.spec.config import Config, JobDefaults
from envbuild.spec.load import Loaded
from envbuild.spec.model import Model
from envbuild.system import apptainer
from envbuild.system.configured import ConfiguredValue, values_of
from envbuild.system.files import check_can_append, is_there
from envbuild.workflows.settings import default_store

# Of them all values count.
_LISTS = ("recipes", "plain_http", "jobs.options", "upstreams", *POLICIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationValue:
    """A value that counts."""

    key: str
    value: str | int | bool | None
    """None if nothing sets it."""
    origin: str
    """An option, a variable, a place in a file, or ``default``; ``unknown`` if a file has errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The configuration of this machine for this user."""

    files: Mapping[str, bool]
    """The files in their order → whether each exists."""
    values: tuple[ConfigurationValue, ...]
    notes: tuple[str, ...]
    """Values without effect, and logs that cannot be written."""
    errors: tuple[EnvbuildError, ...]
    """All errors of the files."""


def show_configuration(given: Mapping[str, Path | None]) -> Configuration:
    """Return the values that count, and what sets each; `given` are options of this command line by key.

    If a file has errors, they are returned, and only values of options and variables are known.
    """
    configs, errors = examine_configs()
    values = []
    if errors:
        configs = ()
    for key in _keys():
        option = given.get(key)
        found = _values(key, [] if option is None else [str(option)], configs)
        counting = found if key in _LISTS else found[:1]
        values += [
            ConfigurationValue(key=key, value=_shown(entry.value), origin=entry.origin) for entry in counting
        ]
        if errors and (key in _LISTS or not counting):
            values.append(ConfigurationValue(key=key, value=None, origin="unknown"))
        elif not counting:
            values.append(ConfigurationValue(key=key, value=_default(key), origin="default"))
    return Configuration(
        files={str(path): is_there(path) for path in config_files()},
        values=tuple(values),
        notes=(*_without_effect(configs), *_closed_logs(configs)),
        errors=tuple(errors),
    )


def _keys() -> Iterator[str]:
    for key in Config.model_fields:
        if key == "jobs":
            yield from (f"jobs.{name}" for name in JobDefaults.model_fields)
        elif key != "schema_":
            yield key


def _values(key: str, given: list[str], configs: tuple[Loaded[Config], ...]) -> list[ConfiguredValue]:
    values = values_of(key, f"--{key}", given, files=partial(file_values, configs=configs))
    if key == "tmpdir" and (directory := os.environ.get("TMPDIR")):
        values.append(ConfiguredValue(value=directory, origin="TMPDIR"))
    return [entry for entry in values if entry.value is not False]


def _default(key: str) -> str | bool | None:
    if key == "store":
        return str(default_store())
    if key == "apptainer":
        with contextlib.suppress(MachineError):
            return str(apptainer.on_path())
    defaults: dict[str, str | bool] = {"tmpdir": "/var/tmp", "require_pass": False}  # noqa: S108
    return defaults.get(key)


def _shown(value: object) -> str | int | bool:
    if isinstance(value, Model):
        return ", ".join(f"{name}: {entry}" for name, entry in value)
    return value if isinstance(value, str | int | bool) else str(value)


def _without_effect(configs: tuple[Loaded[Config], ...]) -> Iterator[str]:
    """Yield a note for each key of the user's file that would loosen what the centre's file requires."""
    if len(configs) < 2:
        return
    user, centre = configs
    for key in POLICIES:
        is_loose = key in user.value.model_fields_set and not getattr(user.value, key)
        if is_loose and getattr(centre.value, key):
            yield f"{user.at(key)}: `{key}` has no effect: {centre.at(key)} counts, too"


def _closed_logs(configs: tuple[Loaded[Config], ...]) -> Iterator[str]:
    """Yield a note for each log that this user cannot write."""
    for log in _values("log", [], configs):
        try:
            check_can_append(Path(log.value))
        except OSError as error:
            yield f"{log.origin}: the log `{log.value}` cannot be written: {error.strerror}"
