"""Roots of Debian with programs that tests and benchmarks start by Apptainer, and that nothing installs."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_root(path: Path, packages: str, suite: str) -> None:
    """Write a root of a suite as a squashfs, unless it is there; `packages` is separated by commas."""
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    partial, tree = path.with_suffix(".partial.sqfs"), path.with_suffix(".tar")
    # The newest that a mirror has may be old.
    options = ("Acquire::Check-Valid-Until false", "Acquire::Languages none", "APT::Install-Recommends false")
    words: list[str | Path] = ["mmdebstrap", "--variant=apt", f"--include={packages}"]
    words += [f'--aptopt={name} "{value}"' for name, value in map(str.split, options)]
    try:
        subprocess.run([*words, suite, tree], check=True)
        # mmdebstrap would pack by xz, and tar2sqfs at a higher level: minutes for a root that is read once.
        pack = ["tar2sqfs", "--quiet", "--force", "--compressor=zstd", "--comp-extra=level=1", str(partial)]
        with tree.open("rb") as archive:
            subprocess.run(pack, stdin=archive, check=True)
    finally:
        tree.unlink(missing_ok=True)
    partial.rename(path)
