"""The specs that the words of a command line name: files, and directories of specs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from envbuild.errors import RequestError, pluralize
from envbuild.events import Emit, Note
from envbuild.quoting import shell_path
from envbuild.spec.base import BaseImage
from envbuild.spec.load import examine
from envbuild.spec.model import EnvSpec
from envbuild.spec.recipe import Recipe
from envbuild.spec.site import Site
from envbuild.system.files import is_directory, list_directory, open_regular
from envbuild.system.links import real_path
from envbuild.workflows.arguments import lock_path
from envbuild.workflows.members import Members

_SUFFIXES = (".yaml", ".yml")
_LOCK_SUFFIXES = tuple(f".lock{suffix}" for suffix in _SUFFIXES)
# A directory with more is not one of specs: a home directory, or a checkout of everything.
_MAX_ENTRIES = 200_000
# The keys of a file stand in its first bytes; long values follow them.
_START_BYTES = 64 << 10
_KEY = re.compile(rb"""^["']?([A-Za-z_][A-Za-z0-9_.-]*)["']?[ \t]*:(?:\s|$)""", re.MULTILINE)


_Model = type[EnvSpec | Recipe | BaseImage | Site]
_OTHER_KINDS: tuple[_Model, ...] = (Recipe, BaseImage, Site)


def specs_of(words: Sequence[Path], emit: Emit) -> Members[None]:
    """Return the specs that files and directories name, sorted by path, each once.

    A directory gives the specs in it and below; hidden ones, locks and other YAML files are skipped, and a
    note counts them. RequestError: a directory holds no spec, or two specs would have one lock.
    """
    if len(words) == 1 and not is_directory(words[0]):
        return Members.of(words, many=False)
    specs: dict[Path, Path] = {}
    for word in words:
        # A link to a directory is followed if it is named, and a file is taken as it is named.
        for path in _specs_below(word, emit) if is_directory(word) else [word]:
            specs.setdefault(real_path(path.parent) / path.name, path)
    members = Members.of(sorted(specs.values()), many=True)
    members.check_outputs(lambda member: [lock_path(member.path)])
    return members


def _specs_below(directory: Path, emit: Emit) -> list[Path]:
    yaml_files = list(_yaml_files(directory))
    specs = [path for path in yaml_files if looks_like_spec(path)]
    skipped = len(yaml_files) - len(specs)
    if skipped:
        text = f"`{directory}`: {pluralize(skipped, 'other YAML file')} skipped"
        emit(Note(text=text, detail=bool(specs)))
    if not specs:
        raise RequestError(
            f"there is no spec in the directory `{directory}`",
            hint=f"`envbuild init {shell_path(directory)}` writes a first spec in it",
        )
    return specs


def _yaml_files(directory: Path) -> Iterator[Path]:
    """Yield the YAML files in a directory and below, without hidden ones, locks and linked directories."""
    waiting, entries = [directory], 0
    while waiting:
        path = waiting.pop()
        names = list_directory(path)
        entries += len(names)
        if entries > _MAX_ENTRIES:
            problem = f"`{directory}` has more than {_MAX_ENTRIES} entries"
            raise RequestError(problem, hint="name the directory that holds the specs alone")
        for name in names:
            below = path / name
            if name.startswith("."):
                continue
            if name.endswith(_SUFFIXES) and not is_directory(below):
                if not name.endswith(_LOCK_SUFFIXES):
                    yield below
            elif not below.is_symlink() and is_directory(below):
                waiting.append(below)


def looks_like_spec(path: Path) -> bool:
    """Return whether a YAML file is meant as a spec, even if it has errors.

    Most of its top-level keys are keys of a spec, no other kind of file has more of them, and it is not a
    valid file of a kind that has as many. An unreadable file may be a spec: reading it reports why.
    """
    try:
        with open_regular(path) as stream:
            start = stream.read(_START_BYTES)
    except (OSError, ValueError):
        return True
    keys = {key.decode() for key in _KEY.findall(start)}
    known = _known(keys, EnvSpec)
    if known <= len(keys) - known:
        return False
    for kind in _OTHER_KINDS:
        as_many = _known(keys, kind)
        if as_many > known or (as_many == known and not examine(kind, start, path)[1]):
            return False
    return True


def _known(keys: Set[str], model: _Model) -> int:
    """Return how many keys of a file are keys of a kind of file."""
    return len(keys & {field.alias or name for name, field in model.model_fields.items()})
