"""Small git repositories."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path


def git(place: Path, *words: str, date: str = "2024-01-01T00:00:00", stdin: str = "") -> str:
    """Run git in a directory, without anyone's configuration; return what it prints."""
    who = {f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    fixed = {"PATH": "/usr/bin:/bin", "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *words],
        cwd=place,
        env={**who, **dates, **fixed},
        input=stdin,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def a_commit(place: Path, files: Mapping[str, str], *, date: str = "2024-01-01T00:00:00") -> str:
    """Make a repository of files, a program and a link; return its commit."""
    place.mkdir(parents=True)
    git(place, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "link").symlink_to("run.sh")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message=x", date=date)
    return git(place, "rev-parse", "HEAD")
