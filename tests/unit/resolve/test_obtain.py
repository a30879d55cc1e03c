"""Files from directories of this machine, in every form of `--from`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from envbuild.errors import Location, RequestError
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.distributions import DistFile
from envbuild.resolve.files import FileCache, WrongBytes
from envbuild.resolve.obtain import local_copy, obtain
from envbuild.resolve.origins import Machine

CONTENT = b"a wheel"
FILE = DistFile(
    name="x",
    version="1",
    file_name="x-1-py3-none-any.whl",
    address="https://files.example.org/x-1-py3-none-any.whl",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
AT = Location(path=Path("spec.yaml"))


@pytest.fixture
def context(tmp_path: Path) -> ResolveContext:
    return ResolveContext(
        machine=Machine(),
        cache_dir=tmp_path / "cache",
        files=FileCache(tmp_path / "files"),
        emit=lambda _: None,
        offline=True,
        directories=(tmp_path / "kept",),
    )


@pytest.mark.parametrize(
    "place", [FILE.file_name, f"wheels/{FILE.file_name}", f"wheels/{FILE.sha256[:12]}/{FILE.file_name}"]
)
def test_a_directory_may_hold_files_in_every_form(
    context: ResolveContext, tmp_path: Path, place: str
) -> None:
    kept = tmp_path / "kept" / place
    kept.parent.mkdir(parents=True)
    kept.write_bytes(CONTENT)
    assert obtain(FILE, AT, context) == kept


def test_the_digest_decides_and_not_the_name(context: ResolveContext, tmp_path: Path) -> None:
    other = tmp_path / "kept" / FILE.file_name
    other.parent.mkdir()
    other.write_bytes(b"another")
    wrong: list[Path] = []

    def on_wrong_bytes(path: Path, _: WrongBytes) -> None:
        wrong.append(path)

    assert local_copy(FILE, context, on_wrong_bytes=on_wrong_bytes) is None
    assert wrong == [other]
    with pytest.raises(RequestError, match=r"offline: `x-1-.*` is not on this machine"):
        obtain(FILE, AT, context)


def test_a_file_of_the_cache_is_made_readable_for_others(context: ResolveContext, tmp_path: Path) -> None:
    with context.files.adding(FILE) as part:
        part.write_bytes(CONTENT)
    assert obtain(FILE, AT, context) == context.files.path(FILE)
    with pytest.raises(WrongBytes), context.files.adding(FILE) as part:
        part.write_bytes(b"another")
