"""The user's files: read with limits, listed in order, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.errors import Location, MachineError, RequestError
from envbuild.system import files
from envbuild.system.files import exists, is_below, is_directory, list_directory, read_input, write_atomically


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_input(path, limit_bytes=5) == b"12345"
    at = Location(path=Path("spec.yaml"), line=3, column=1)
    with pytest.raises(RequestError, match="is too large: more than 4 bytes") as caught:
        read_input(path, limit_bytes=4, at=at)
    assert caught.value.at == at


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(RequestError, match="is not a regular file"):
        read_input(Path("/dev/zero"), limit_bytes=10)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").touch()
    with pytest.raises(RequestError, match=r"there is no file `.*/spec.yml`") as caught:
        read_input(tmp_path / "spec.yml", limit_bytes=10)
    assert caught.value.hint == "did you mean `spec.yaml`?"
    (tmp_path / "link.yaml").symlink_to("gone.yaml")
    with pytest.raises(RequestError, match=r"there is no file `.*/link.yaml`") as caught:
        read_input(tmp_path / "link.yaml", limit_bytes=10)
    assert caught.value.hint == "it is a link to `gone.yaml`: make that, or remove the link"
    with pytest.raises(RequestError, match="is a directory, not a file"):
        read_input(tmp_path, limit_bytes=10)
    with pytest.raises(RequestError, match="Not a directory"):
        read_input(tmp_path / "spec.yaml" / "a", limit_bytes=10)
    with pytest.raises(RequestError, match="File name too long"):
        read_input(tmp_path / ("x" * 300), limit_bytes=10)
    with pytest.raises(RequestError, match="null byte"):
        read_input(Path("a\0b"), limit_bytes=10)


def test_descriptors_are_not_leaked(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(RequestError):
            read_input(tmp_path, limit_bytes=10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_directory_is_listed_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "C", "ä", "10", "9"):
        (tmp_path / name).touch()
    assert list_directory(tmp_path) == ("10", "9", "C", "a", "b", "ä")
    assert list_directory(tmp_path / "nowhere") == ()
    assert list_directory(tmp_path / "a") == ()


def test_looking_never_raises(tmp_path: Path) -> None:
    assert exists(tmp_path)
    assert is_directory(tmp_path)
    assert not is_directory(tmp_path / "nowhere")
    for path in (tmp_path / "nowhere", tmp_path / ("x" * 300), Path("a\0b")):
        assert not exists(path)


def test_below_means_after_following_links(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    assert is_below(tmp_path / "in" / "a", tmp_path / "in")
    assert not is_below(tmp_path / "in" / "out" / "a", tmp_path / "in")
    assert not is_below(tmp_path / "in2", tmp_path / "in")


def test_a_write_is_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "lock.yaml"
    old = os.umask(0o027)
    try:
        write_atomically(path, b"one")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640  # as any new file of this user
    path.chmod(0o600)
    inode = path.stat().st_ino
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_ino != inode  # renamed into place, not written over
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_goes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_atomically(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"


def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="cannot be written: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_sync_takes_files_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    (tmp_path / "x").touch()
    files.sync(tmp_path)
    files.sync(tmp_path / "x")
    assert synced == [tmp_path.stat().st_ino, (tmp_path / "x").stat().st_ino]
    with pytest.raises(FileNotFoundError):
        files.sync(tmp_path / "y")


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be written: No such file"):
        write_atomically(tmp_path / "nowhere" / "a", b"")
    (tmp_path / "d").mkdir()
    with pytest.raises(RequestError, match="it is a directory"):
        write_atomically(tmp_path / "d", b"")


def test_configuration_is_the_users_then_the_machines_then_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    homes = files.configuration_homes()
    assert homes[:2] == (tmp_path / ".config" / "envbuild", Path("/etc/envbuild"))
    assert (homes[2] / "base-images" / "debian-12.yaml").is_file()
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert files.settings_homes()[0] == Path("/x/envbuild")
