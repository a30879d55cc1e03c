"""Which directories are stores, and whose."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from envbuild.errors import MachineError, RequestError
from envbuild.store.opening import MARKER
from envbuild.store.store import Store
from envbuild.system.descriptors import with_real_paths
from envbuild.system.privacy import parents_others_can_write
from tests.support.stores import layer


def opened(path: Path) -> Store:
    store = Store(path)
    store.directory("plans")
    return store


def refusal(path: Path) -> tuple[str, str]:
    """Return what is wrong with a store, for who reads it and for who writes to it."""
    problems = []
    for makes in (False, True):
        with pytest.raises((RequestError, MachineError)) as caught:
            _ = Store(path).directory("plans") if makes else Store(path).root
        problems.append((caught.value.problem, caught.value.hint))
    assert problems[0] == problems[1]
    return problems[0]


def test_a_store_is_made_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a/b/store"
    assert not Store(path).exists
    assert Store(path).get("sha256:" + "a" * 64) is None
    assert not path.exists(), "looking makes none"
    opened(path)
    assert Store(path).exists
    assert sorted(entry.name for entry in path.iterdir()) == [MARKER, "plans"]


def test_an_empty_directory_becomes_one_and_another_does_not(tmp_path: Path) -> None:
    (tmp_path / "disk/lost+found").mkdir(parents=True)
    assert not Store(tmp_path / "disk").exists
    assert opened(tmp_path / "disk").exists
    (tmp_path / "desk/drawer").mkdir(parents=True)
    problem, hint = refusal(tmp_path / "desk")
    assert "is not a store" in problem
    assert "--store" in hint
    assert [entry.name for entry in (tmp_path / "desk").iterdir()] == ["drawer"]


def test_one_of_an_earlier_version_is_to_be_deleted(tmp_path: Path) -> None:
    (tmp_path / "old/layers").mkdir(parents=True)
    problem, hint = refusal(tmp_path / "old")
    assert problem == f"an earlier version of envbuild made the store `{tmp_path}/old`"
    assert f"`rm -rf {tmp_path}/old`" in hint


def test_what_is_no_directory_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problem, _ = refusal(tmp_path / "file")
    assert problem == f"`{tmp_path}/file` is not a directory, so it is not a store"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_part_of_it_that_is_no_directory(tmp_path: Path, kind: str) -> None:
    opened(tmp_path / "store")
    (tmp_path / "elsewhere").mkdir()
    part = tmp_path / "store/files"
    part.touch() if kind == "file" else part.symlink_to(tmp_path / "elsewhere")
    problem, _ = refusal(tmp_path / "store")
    assert problem == f"`files` in the store `{tmp_path}/store` is not a directory"


@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_a_link_is_not_followed(tmp_path: Path, target: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(RequestError, match="is a link") as caught:
        opened(tmp_path / "link")
    assert caught.value.hint == f"name its directory: `{tmp_path / target}`"
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize(("mode", "who"), [(0o770, "its group"), (0o2770, "its group"), (0o777, "everybody")])
def test_others_cannot_write_to_it(tmp_path: Path, mode: int, who: str) -> None:
    path = tmp_path / "store"
    opened(path)
    path.chmod(mode)
    problem, hint = refusal(path)
    assert problem == f"{who} can write to the store `{path}`, and so into images"
    assert f"`chmod -R go-w {path}`" in hint
    path.chmod(0o755)
    assert Store(path).exists


@pytest.mark.parametrize(("permissions", "refused"), [(7, True), (5, False)])
def test_others_cannot_write_to_it_by_an_access_control_list(
    tmp_path: Path, permissions: int, refused: bool
) -> None:
    path = tmp_path / "store"
    opened(path)
    # Owner, another user, group, mask, others; see acl(5) and linux/posix_acl_xattr.h.
    nobody, unnamed = 65534, 0xFFFFFFFF
    entries = [(1, 7, unnamed), (2, permissions, nobody), (4, 5, unnamed), (16, permissions, unnamed)]
    content = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry) for entry in [*entries, (32, 5, unnamed)]
    )
    os.setxattr(path, "system.posix_acl_access", content)
    if refused:
        assert "its group can write to" in refusal(path)[0]
    else:
        assert Store(path).exists


def test_it_belongs_to_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    opened(path)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    problem, hint = refusal(path)
    assert problem.startswith(f"the store `{path}` belongs to ")
    assert problem.endswith("and a store has one owner")
    assert "--store" in hint


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_what_is_in_it_can_be_read_by_whoever_can_enter_it(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = opened(tmp_path / "store")
        store.write("plans/deeper/x.json", "{}")
        store.directory("logs")
    finally:
        os.umask(before)
    modes = {
        path.relative_to(store.path).as_posix(): path.stat().st_mode & 0o7777
        for path in (store.path, *store.path.rglob("*"))
    }
    assert modes == {
        ".": 0o755 & ~umask,
        MARKER: 0o444 & ~umask,
        "lock": 0o600,  # or others could keep prune away
        "plans": 0o755,
        "plans/deeper": 0o755,
        "plans/deeper/x.json": 0o644,
        "logs": 0o700,
        "stage": 0o700,
    }


def test_another_in_its_place_is_not_used(tmp_path: Path) -> None:
    """Whoever can write to the directory around a store can put another there."""
    path = tmp_path / "store"
    store = opened(path)
    path.rename(tmp_path / "aside")
    path.symlink_to(tmp_path / "victim")
    (tmp_path / "victim/plans").mkdir(parents=True)
    store.write("plans/x.json", "{}")
    store.directory("logs")
    assert (tmp_path / "aside/plans/x.json").read_text() == "{}"
    assert [entry.name for entry in (tmp_path / "victim").rglob("*")] == ["plans"]
    assert with_real_paths(f"see {store.root}/logs") == f"see {tmp_path}/aside/logs"


def test_who_can_take_it_away(public: Path) -> None:
    project = public / "project"
    project.mkdir()
    project.chmod(0o2770)
    assert parents_others_can_write(project / "mine/store") == (project,)
    project.chmod(0o1777)
    assert parents_others_can_write(project / "mine/store") == (), (
        "as in /tmp, nobody can rename what is another's"
    )
    project.chmod(0o775)
    public.chmod(0o700)
    assert parents_others_can_write(project / "mine/store") == (), "nobody else gets there"


@pytest.mark.redteam
def test_a_store_that_can_be_renamed_stays_one_wherever_its_name_leads(public: Path) -> None:
    (public / "mine").mkdir()
    public.chmod(0o2775)
    store = opened(public / "mine/store")
    store.directory("files").joinpath("x.deb").write_text("x")
    assert store.parents_others_can_write == (public,)
    (public / "mine").rename(public / "aside")
    (public / "mine").symlink_to("/usr")
    assert store.can_be_renamed
    with store.stage() as stage, store.directory_for_programs("resolve") as directory:
        copy = store.for_programs(store.root / "files/x.deb", stage)
        assert copy.read_text() == "x"
        for path in (stage, directory, copy):
            assert public not in path.resolve().parents
    assert not stage.exists()


@pytest.mark.parametrize("place", ["layers", "layers/aa", "blobs/sha256", "record"])
def test_what_others_can_write_to_does_not_count(tmp_path: Path, place: str) -> None:
    store = Store(tmp_path / "store")
    record = layer(store, "a")
    assert store.get(record.key) == record
    path = store.record_path(record.key) if place == "record" else store.root / place
    path.chmod(path.stat().st_mode | 0o020)
    assert Store(store.path).get(record.key) is None
