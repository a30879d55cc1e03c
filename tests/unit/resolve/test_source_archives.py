"""What source archives say of themselves."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from envbuild.errors import Location, RequestError
from envbuild.resolve import source_archives
from envbuild.resolve.source_archives import SourceMetadata, read_archive

AT = Location(path=Path("spec.yaml"))
OLD = "Metadata-Version: 2.1\nName: x\nVersion: 1\n"
NEW = "Metadata-Version: 2.4\nName: x\nVersion: 1\nRequires-Dist: six\n"
PROJECT = """\
[build-system]
requires = ["hatchling"]
[project]
dependencies = ["click>=8"]
optional-dependencies = {"My_Test" = ["pytest; python_version > '3'"]}
"""


def read(directory: Path, **files: str) -> SourceMetadata:
    path = directory / "x-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"x-1/{name.replace('__', '/').replace('_', '.')}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return read_archive(path, at=AT)


@pytest.mark.parametrize(
    ("files", "requires"),
    [
        ({"PKG-INFO": NEW, "pyproject_toml": PROJECT}, ("six",)),
        (
            {"PKG-INFO": f"{NEW}Dynamic: Requires-Dist\n", "pyproject_toml": PROJECT},
            ("click>=8", "pytest ; (python_version > \"3\") and extra == 'my-test'"),
        ),
        ({"PKG-INFO": OLD, "pyproject_toml": PROJECT.replace("optional", "x-")}, ("click>=8",)),
        ({"PKG-INFO": f"{OLD}Requires-Dist: attrs\n"}, ("attrs",)),
        ({"PKG-INFO": OLD}, ()),
        ({"setup_py": "raise SystemExit"}, ()),
        (
            {
                "PKG-INFO": OLD,
                "src__x_egg-info__requires_txt": (
                    "six\n\n[:python_version < '3']\nfutures\n\n[all]\ny[z]>1\n\n[all:os_name == 'nt']\nwin\n"
                ),
            },
            (
                "six",
                "futures ; python_version < '3'",
                "y[z]>1 ; extra == 'all'",
                "win ; (os_name == \"nt\") and extra == 'all'",
            ),
        ),
    ],
)
def test_what_an_archive_requires(tmp_path: Path, files: dict[str, str], requires: tuple[str, ...]) -> None:
    assert read(tmp_path, **files).requires == requires


def test_what_a_build_imports(tmp_path: Path) -> None:
    assert read(tmp_path, pyproject_toml=PROJECT).imports == ("hatchling",)
    assert read(tmp_path, setup_py="").imports == ("setuptools>=40.8.0", "wheel")
    # Only that of the archive's own directory counts.
    assert "setuptools>=40.8.0" in read(tmp_path, vendored__pyproject_toml=PROJECT).imports


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[build-system]\nrequires = ["x @ https://example.org/x.whl"]', "names an address"),
        ("[build-system]\nrequires = [3]", "malformed"),
        ("[project]\ndependencies = 3", "not iterable"),
        ("project = 3", "cannot be built"),
        ("[build-system", "cannot be built"),
        ("a = " + "[" * 10_000, "nested too deep"),
        ("a." * 10_000 + "a = 1", "more than 32 parts"),
        ("a = " + "9" * 5000, "cannot be built"),
        (f"[project]\ndependencies = {['x'] * 2001}", "more than 2000 requirements"),
        (f"[project]\ndependencies = ['x{', >1' * 2000}']", "longer than 4096 characters"),
    ],
)
def test_archives_that_cannot_be_used(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as caught:
        read(tmp_path, pyproject_toml=text)
    assert "build a wheel of it yourself" in (caught.value.hint or "")


@pytest.mark.redteam
def test_the_headers_of_an_archive_are_bounded(tmp_path: Path) -> None:
    head = tarfile.TarInfo("././@PaxHeader")
    head.type, head.size = tarfile.XHDTYPE, 16 << 20
    with gzip.open(tmp_path / "x-1.tar.gz", "wb", compresslevel=1) as file:
        file.write(head.tobuf(tarfile.USTAR_FORMAT) + b"16777216 a=" + b"a" * ((16 << 20) - 12) + b"\n")
        file.write(tarfile.TarInfo("x-1/PKG-INFO").tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    with pytest.raises(RequestError, match="a header of it claims 16777216 bytes"):
        read_archive(tmp_path / "x-1.tar.gz", at=AT)


@pytest.mark.redteam
def test_headers_that_nest_are_an_error(tmp_path: Path) -> None:
    record = b"8 a=bcd\n"
    head = tarfile.TarInfo("././@PaxHeader")
    head.type, head.size = tarfile.XHDTYPE, len(record)
    with gzip.open(tmp_path / "x-1.tar.gz", "wb", compresslevel=1) as file:
        file.write((head.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")) * 5000)
    with pytest.raises(RequestError, match=r"`x-1\.tar\.gz` cannot be built"):
        read_archive(tmp_path / "x-1.tar.gz", at=AT)


def test_the_files_of_an_archive_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_archives, "_MAX_MEMBERS", 2)
    assert read(tmp_path, a="", pyproject_toml=PROJECT).imports == ("hatchling",)
    with pytest.raises(RequestError, match="more than 2 files"):
        read(tmp_path, a="", b="", c="")
    monkeypatch.setattr(source_archives, "_MAX_BYTES", 4096)
    with pytest.raises(RequestError, match="unpacks to more than 4096 bytes"):
        read(tmp_path, a="x" * 4096)


@pytest.mark.parametrize(
    "content", [b"", b"no archive", gzip.compress(b"x" * 2000, mtime=0)[:-9]], ids=["empty", "text", "cut"]
)
def test_no_archive_at_all(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x-1.tar.gz").write_bytes(content)
    with pytest.raises(RequestError, match=r"`x-1\.tar\.gz` cannot be built"):
        read_archive(tmp_path / "x-1.tar.gz", at=AT)
