"""What this machine's own configuration of uv and pip says of where Python distributions come from.

Sources: uv's reference (configuration files, ``UV_*`` variables), pip's user
guide (configuration, its files' order). A project's own ``uv.toml`` or
``pyproject.toml`` is not read: it speaks of that project, not of this machine.
"""

from __future__ import annotations

import configparser
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envbuild.errors import MachineError
from envbuild.system import network
from envbuild.system.files import IrregularError, read_small

_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one place says.

    Attributes
    ----------
    where : str
        Variable or file, for messages.
    index : str
        Address; empty where it names none. May hold credentials.
    find_links : tuple of str
        Directories and pages with wheels.
    no_index : bool
        Whether no index may be asked.
    """

    where: str
    index: str = ""
    find_links: tuple[str, ...] = ()
    no_index: bool = False


def python_settings(variables: Mapping[str, str], etc: Path) -> Iterator[Said]:
    """Yield what uv and pip are told here, uv first; in each, what counts more comes first.

    Parameters
    ----------
    variables : mapping
        The environment.
    etc : Path
        Directory of the machine's configuration.

    Raises
    ------
    MachineError
        A file cannot be read, or an address is none.
    """
    for said in (*_uv_variables(variables), *_uv_files(variables, etc), _pip(variables, etc)):
        for address in (said.index, *said.find_links):
            if not _is_address(address):
                raise MachineError(
                    f"{said.where} names an index or a place with wheels whose address is none",
                    hint="mend it there: such as `https://HOST/simple`, with an IPv6 address in brackets",
                )
        yield said


def _uv_variables(variables: Mapping[str, str]) -> Iterator[Said]:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        # It may carry a name: `name=https://…`.
        index = re.sub(r"^[A-Za-z0-9_.-]+=(?=[a-z]+://)", "", variables.get(name, ""))
        yield Said(where=name, index=index.strip())
    links = re.split(r"[,\s]+", variables.get("UV_FIND_LINKS", ""))
    yield Said(where="UV_FIND_LINKS", find_links=tuple(filter(None, links)))
    yield Said(where="UV_NO_INDEX", no_index=_truth(variables.get("UV_NO_INDEX", "")))


def _uv_files(variables: Mapping[str, str], etc: Path) -> Iterator[Said]:
    if _truth(variables.get("UV_NO_CONFIG", "")):
        return
    read = [(path, data) for path in _uv_places(variables, etc) if (data := _toml(path)) is not None]
    # What is said for `uv pip` counts more, in whichever file it stands.
    for path, data in [*((path, data.get("pip", {})) for path, data in read), *read]:
        try:
            indexes = [found["url"] for found in data.get("index", ()) if found.get("default") is True]
            index = next(iter(indexes), data.get("index-url", ""))
            links = [_beside(path, link) for link in data.get("find-links", ())]
            no_index = data.get("no-index") is True
        except (AttributeError, KeyError, TypeError) as error:
            raise _unreadable("uv", path, "its settings have other types") from error
        if not isinstance(index, str):
            raise _unreadable("uv", path, "its settings have other types")
        yield Said(where=f"`{path}`", index=index.strip(), find_links=tuple(links), no_index=no_index)


def _uv_places(variables: Mapping[str, str], etc: Path) -> Iterator[Path]:
    """Yield uv's configuration files: the user's, then the first of the machine's."""
    chosen = variables.get("UV_CONFIG_FILE", "")
    if chosen:
        yield Path(chosen).absolute()
        return
    yield _user_configuration(variables) / "uv/uv.toml"
    shared = [Path(place) for place in variables.get("XDG_CONFIG_DIRS", "").split(":") if place]
    places = [*((place / "uv/uv.toml") for place in shared or [etc / "xdg"]), etc / "uv/uv.toml"]
    yield from [place for place in places if place.exists()][:1]


def _toml(path: Path) -> dict[str, Any] | None:
    text = _text("uv", path)
    try:
        return None if text is None else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _unreadable("uv", path, f"it is no TOML file: {error}") from error


def _beside(path: Path, link: str) -> str:
    """Return a find-links entry of a file, relative to that file."""
    return link if network.local_path(link) is None or "://" in link else str(path.parent / link)


def _pip(variables: Mapping[str, str], etc: Path) -> Said:
    """Return pip's settings; what stands later in pip's order wins."""
    settings: dict[str, str] = {}
    where: dict[str, str] = {}
    for path in _pip_places(variables, etc):
        text = _text("pip", path)
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(text or "")
        except configparser.Error as error:
            raise _unreadable("pip", path, "it is no INI file") from error
        for section in ("global", "install"):
            if parser.has_section(section):
                found = {name.replace("_", "-"): value for name, value in parser.items(section)}
                settings.update(found)
                where.update(dict.fromkeys(found, f"`{path}`"))
    for name in ("index-url", "find-links", "no-index"):
        variable = "PIP_" + name.upper().replace("-", "_")
        if (value := variables.get(variable)) is not None:
            settings[name], where[name] = value, variable
    return Said(
        where=" or ".join(sorted({where[name] for name in ("index-url", "find-links") if name in where})),
        index=settings.get("index-url", "").strip(),
        find_links=tuple(settings.get("find-links", "").split()),
        no_index=_truth(settings.get("no-index", "")),
    )


def _pip_places(variables: Mapping[str, str], etc: Path) -> Iterator[Path]:
    chosen = variables.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return
    yield etc / "xdg/pip/pip.conf"
    yield etc / "pip.conf"
    yield Path(variables.get("HOME") or "/nonexistent") / ".pip/pip.conf"
    yield _user_configuration(variables) / "pip/pip.conf"
    if chosen:
        yield Path(chosen)


def _user_configuration(variables: Mapping[str, str]) -> Path:
    home = Path(variables.get("HOME") or "/nonexistent")
    return Path(variables.get("XDG_CONFIG_HOME") or home / ".config")


def _text(tool: str, path: Path) -> str | None:
    """Return what a file says; None for one that is not there, or that only others may read."""
    try:
        return read_small(path, limit_bytes=_LIMIT_BYTES).decode()
    except IrregularError as error:
        raise _unreadable(tool, path, f"it is {error.strerror}") from error
    except OSError:
        return None
    except ValueError as error:
        why = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise _unreadable(tool, path, why) from error


def _unreadable(tool: str, path: Path, why: str) -> MachineError:
    hint = "mend that file"
    if tool == "pip":
        hint += ": `pip config debug` shows where settings come from"
    return MachineError(f"{tool}'s configuration `{path}` cannot be read: {why}", hint=hint)


def _is_address(text: str) -> bool:
    try:
        # Each looks for mistakes of its own.
        return text.isprintable() and (urlsplit(text).port or 0) >= 0
    except ValueError:
        return False


def _truth(value: str) -> bool:
    return value.strip().lower() in {"1", "yes", "true", "on", "y", "t"}
