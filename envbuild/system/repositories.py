"""Git repositories of this machine: whether git reads nothing outside of a directory for one."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envbuild.errors import Location, RequestError
from envbuild.system.files import is_below
from envbuild.system.redaction import redact


def check_is_inside(address: str, directory: Path, at: Location) -> None:
    """Raise a RequestError if a repository of this machine is outside a directory, or leads out of it."""
    parts = urlsplit(address)
    if parts.scheme == "file" and (parts.netloc or _leads_out(unquote(parts.path), directory)):
        problem = f"the repository {redact(address)} is outside the spec's directory, or leads out of it"
        hint = "clone it into that directory (`git clone --no-local`), or name an https or ssh address"
        raise RequestError(problem, at=at, hint=hint)


def _leads_out(path: str, directory: Path) -> bool:
    """Return whether git would read files outside of a directory for the repository at a path."""
    if not is_below(Path(path), directory):
        return True
    # As git looks for it: enter_repo() in path.c of git 2.39.
    for git_directory in map(Path, (f"{path}/.git", path, f"{path}.git/.git", f"{path}.git")):
        if git_directory.is_file() or not is_below(git_directory, directory):
            return True  # a file `.git` names another directory
        if not (git_directory / "HEAD").exists():
            continue
        if any(os.path.lexists(git_directory / name) for name in ("commondir", "objects/info/alternates")):
            return True
        for parent, directories, files in os.walk(git_directory):
            entries = (Path(parent, name) for name in (*directories, *files))
            if not all(is_below(entry, directory) for entry in entries if entry.is_symlink()):
                return True
    return False
