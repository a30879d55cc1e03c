"""Again: a build of which nothing changed is answered from what the last one noted, in a fifth of a second.

What counts as nothing: every question that reading the spec, its recipes, its site and its lock asked of
files is answered by the same content; the command line, the variables that count, this program and the
tools are the same; and the image, its layers and their records are the very files that they were. All
else is built as ever, which may well find that nothing changed.

Light on purpose: reading a spec and planning would take three times as long.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.events import Warned
from envbuild.store.inventory import NOTES
from envbuild.store.store import Store
from envbuild.system import noted, tools
from envbuild.system.files import NOTE_LIMIT_BYTES, read_small
from envbuild.system.noted import Answer
from envbuild.system.sealing import check_sealed_line, sealed_line
from envbuild.system.tools import ToolIdentity
from envbuild.workflows.exposed import exposed
from envbuild.workflows.settings import Settings

_FORMAT = 1
_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a build was asked for: all that decides what it does, beside what files hold.

    Attributes
    ----------
    spec : Path
        The spec.
    words : dict of str to object
        The command's options, as JSON holds them.
    """

    spec: Path
    words: dict[str, object]

    @staticmethod
    def of(spec: Path, settings: Settings, **options: object) -> Wanted:
        """Return what is asked for with these settings and options, here."""
        counts = ("ENVBUILD_", "XDG_", "UV_", "PIP_")
        variables = {name: value for name, value in os.environ.items() if name.startswith(counts)}
        variables |= {name: os.environ.get(name, "") for name in ("HOME", "PATH")}
        where = {"directory": str(Path.cwd()), "user": os.geteuid(), "variables": variables}
        given = {"recipes": list(map(str, settings.recipes)), "site": str(settings.site)}
        return Wanted(spec=spec, words={**where, **given, **options, "spec": str(spec)})

    def place(self, store: Store) -> Path:
        """Return where the store notes what came of it: variables may hold secrets, a digest does not."""
        name = noted.digest(json.dumps(self.words, sort_keys=True, default=str).encode())
        return store.root / NOTES / f"{name}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """A build of which nothing changed.

    Attributes
    ----------
    built : dict of str to object
        What the build told as JSON.
    warned : tuple of Warned
        What is to be told again.
    """

    built: dict[str, Any]
    warned: tuple[Warned, ...]


def recall(wanted: Wanted, settings: Settings) -> Same | None:
    """Return what a build would tell if nothing changed since it was noted; None if it has to look."""
    place = wanted.place(settings.store)
    try:
        at = place.stat().st_mtime_ns
        data = json.loads(check_sealed_line(read_small(place, limit_bytes=NOTE_LIMIT_BYTES).decode()))
        if data["format"] != _FORMAT or data["program"] != noted.program():
            return None
        for path, was in data["files"].items():
            if noted.signature(Path(path)) != was or not noted.settled(was, at):
                return None
        if not noted.still([Answer(*answer) for answer in data["answers"]], _LIMIT_BYTES):
            return None
        found = tools.identify(settings.store.root / "tools", [tool["name"] for tool in data["tools"]])
        if [asdict(tool) for tool in found] != data["tools"]:
            return None
        warned = tuple(Warned(text=text, hint=hint) for text, hint in data["warned"])
        return Same(built=data["built"], warned=(*exposed(settings.store), *warned))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, EnvbuildError):
        return None


def remember(
    wanted: Wanted,
    settings: Settings,
    *,
    answers: Iterable[Answer],
    found: Sequence[ToolIdentity],
    files: Iterable[Path],
    built: dict[str, object],
    warned: Iterable[Warned],
) -> None:
    """Note what a build that ended well asked, used and told.

    Parameters
    ----------
    answers : iterable of Answer
        What was asked of files.
    found : sequence of ToolIdentity
        The tools.
    files : iterable of Path
        The image, and what the store has of its layers.
    """
    data = {
        "format": _FORMAT,
        "program": noted.program(),
        "answers": sorted(set(answers)),
        "tools": [asdict(tool) for tool in found],
        "files": {str(path): noted.signature(path) for path in files},
        "built": built,
        "warned": [[warning.text, warning.hint] for warning in warned],
    }
    settings.store.write(wanted.place(settings.store), sealed_line(json.dumps(data)))
