"""Images of anyone for tests: small trees packed by mksquashfs, and Pythons that answer as they should."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.extend.python import PythonInstallation, choose_python, probe_python
from envbuild.image.files import ImageFiles
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine, PythonSources
from envbuild.squashfs.reader import Squashfs
from envbuild.system import squashfs
from envbuild.system.process import Finished

SITE = "/usr/local/lib/python3.11/site-packages"
IMAGE = Path("image.sif")
# Path → content, or the target of a link (a tuple of one); a path that ends in `/` is a directory.
Tree = Mapping[str, bytes | str | tuple[str]]
PYTHON: Tree = {"/usr/local/bin/python3": ("python3.11",), "/usr/local/bin/python3.11": b"\x7fELF"}
ANSWER: Mapping[str, Any] = {
    "implementation": "cpython",
    "version": [3, 11, 2],
    "flags": "",
    "machine": "x86_64",
    "libc": "glibc 2.36",
    "sites": [SITE],
    "path": ["/usr/local/lib/python311.zip", "/usr/local/lib/python3.11", SITE],
    "library_path": "",
}


def distribution(
    name: str, version: str, *requires: str, site: str = SITE, files: Mapping[str, bytes] | None = None
) -> Tree:
    """Return the files of an installed distribution, with its record; `files` lie in its package."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {text}\n" for text in requires]
    tree: dict[str, bytes | str | tuple[str]] = {
        f"{package}/__init__.py": "",
        f"{package}/__pycache__/__init__.cpython-311.pyc": b"old",
        f"{info}/METADATA": "".join(lines),
        f"{info}/INSTALLER": "pip\n",
        **{f"{package}/{file}": content for file, content in (files or {}).items()},
    }
    listed = [path for path in tree if not path.endswith((".pyc", "INSTALLER"))]
    tree[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*listed, f"{info}/RECORD"])
    return {f"{site}/{path}": content for path, content in tree.items()}


@contextmanager
def opened(directory: Path, *trees: Tree) -> Iterator[ImageFiles]:
    """Pack trees together and open the image."""
    root, out = directory / "image", directory / "image.sqfs"
    for tree in trees:
        for name, content in tree.items():
            path = root / name.strip("/")
            if name.endswith("/"):
                path.mkdir(parents=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, tuple):
                path.symlink_to(content[0])
            else:
                data = content.encode() if isinstance(content, str) else content
                path.write_bytes(data)
                path.chmod(0o755 if data.startswith((b"\x7fELF", b"#!")) else 0o644)
    squashfs.make(root, out)
    with out.open("rb") as file:
        yield ImageFiles(Squashfs(file, 0, out.stat().st_size))


@dataclass
class Answering:
    """Takes the place of a sandbox: prints a text, and notes what it was to run."""

    text: str
    argv: Sequence[str] = ()

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        self.argv = argv
        return Finished(argv=tuple(argv), code=0, stdout=self.text, stderr="")


def probed(image: ImageFiles, **changes: Any) -> PythonInstallation:
    """Return what a Python is that answers with `ANSWER`, or what differs from it.

    Without a `path` it looks in its `sites` alone.
    """
    path = changes.get("sites", ANSWER["path"])
    sandbox: Any = Answering(json.dumps({**ANSWER, "path": path, **changes}))
    executable = choose_python(image, None, IMAGE, str)
    return probe_python(image, executable, sandbox=sandbox, log=Path("log"), at=IMAGE)


def offline_context(directory: Path, wheels: Path, emit: Any = lambda event: None) -> ResolveContext:
    """Return a context that knows the wheels of one directory alone."""
    sources = PythonSources(find_links=(str(wheels),), no_index=True)
    return ResolveContext(
        machine=Machine(python=sources),
        cache_dir=directory / "cache",
        files=FileCache(directory / "files"),
        emit=emit,
    )
