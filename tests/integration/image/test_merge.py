"""Merged layers, made with the real tools: the same for root and user, nothing lost on the way."""

import subprocess
from pathlib import Path

import pytest

from envbuild.build import merge
from envbuild.errors import BuildError
from envbuild.system import squashfs
from tests.integration.image.conftest import Images
from tests.integration.image.test_squashfs import listing, room, run_python_as_root
from tests.support import trees

__all__ = ["room"]


def modes(path: Path) -> dict[str, str]:
    """Name → kind and mode."""
    return {line.split("squashfs-root", 1)[1]: line[:10] for line in listing(path)}


@pytest.fixture
def layers(room: Path) -> list[Path]:
    (room / "low").mkdir()
    (room / "high").mkdir()
    trees.write(
        room / "low",
        {
            "/etc/shadow": ("secret\n", 0o600),
            "/bin/su": ("su\n", 0o4755),
            "/dir/kept": ("low\n", 0o644),
            "/dir/with blank": ("low\n", 0o640),
            "/dir/changed": ("low\n", 0o644),
            "/gone/deep/file": ("low\n", 0o644),
        },
    )
    (room / "low/dir").chmod(0o750)
    trees.write(room / "high", {"/dir/changed": ("high\n", 0o755), "/dir/new": ("high\n", 0o644)})
    (room / "high/link").symlink_to("dir/new with blank")
    # Through the tool: the file itself must be readable to whoever runs this.
    squashfs.make(room / "low", room / "low.squashfs", pseudo=["etc/shadow m 000 0 0"])
    hidden = [squashfs.whiteout("/gone"), squashfs.whiteout("/below")]
    squashfs.make(room / "high", room / "high.squashfs", pseudo=hidden)
    return [room / "low.squashfs", room / "high.squashfs"]


def test_into_a_root(room: Path, layers: list[Path]) -> None:
    merge.merge(layers, room / "all.squashfs", with_root=True)
    assert modes(room / "all.squashfs") == {
        "": "drwxr-xr-x",
        "/bin": "drwxr-xr-x",
        "/bin/su": "-rwsr-xr-x",
        "/dir": "drwxr-xr-x",
        "/dir/changed": "-rwxr-xr-x",
        "/dir/kept": "-rw-r--r--",
        "/dir/new": "-rw-r--r--",
        "/dir/with blank": "-rw-r-----",
        "/etc": "drwxr-xr-x",
        "/etc/shadow": "----------",
        "/link -> dir/new with blank": "lrwxrwxrwx",
    }
    told = subprocess.run(
        ["unsquashfs", "-cat", room / "all.squashfs", "dir/changed", "dir/kept", "etc/shadow"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "high\nlow\nsecret\n"


def test_what_was_unpacked_ahead_gives_the_same(room: Path, layers: list[Path]) -> None:
    """Once: the second merge unpacks anew, as it does where unpacking ahead failed."""
    merge.merge(layers, room / "all.squashfs", with_root=True)
    whole = (room / "all.squashfs").read_bytes()
    broken = room / "broken.squashfs"
    broken.write_bytes(b"hsqs")
    with merge.unpacking([layers[0], broken], room) as unpacked:
        dump = unpacked[layers[0]].result()
        for name in ("first", "second"):
            merge.merge(layers, room / name, with_root=True, unpacked=unpacked)
            assert (room / name).read_bytes() == whole
            assert not dump.exists()
        with pytest.raises(BuildError):
            merge.merge([broken], room / "third", with_root=True, unpacked=unpacked)
    assert not dump.parent.exists()


def test_as_a_group_whiteouts_stay(room: Path, layers: list[Path]) -> None:
    merge.merge(layers, room / "all.squashfs", with_root=False)
    found = modes(room / "all.squashfs")
    assert found["/gone"] == found["/below"] == "c---------"
    assert "/gone/deep" not in found


def test_equals_a_squashfs_of_the_merged_tree(room: Path, layers: list[Path]) -> None:
    """Two ways to the same files give the same bytes."""
    merge.merge(layers, room / "all.squashfs", with_root=True)
    for layer in layers:
        options = ["-q", "-n", "-f", "-excludes", "-d", str(room / "tree")]
        subprocess.run(["unsquashfs", *options, layer, "gone", "below"], check=True)
    # An ordinary user's unsquashfs drops this bit, which is why merging does without.
    (room / "tree/bin/su").chmod(0o4755)
    (room / "tree/etc/shadow").chmod(0o600)
    squashfs.make(room / "tree", room / "tree.squashfs", pseudo=["etc/shadow m 000 0 0"])
    assert (room / "tree.squashfs").read_bytes() == (room / "all.squashfs").read_bytes()


def test_root_and_user_merge_alike(room: Path, layers: list[Path]) -> None:
    merge.merge(layers, room / "all.squashfs", with_root=True, processors=1)
    (room / "of-root").mkdir()
    run_python_as_root(
        """
        import os, sys
        from pathlib import Path
        from envbuild.build import merge
        os.umask(0o077)
        low, high, out = (Path(word) for word in sys.argv[1:])
        merge.merge([low, high], out, with_root=True)
        """,
        *layers,
        room / "of-root/all.squashfs",
    )
    assert (room / "of-root/all.squashfs").read_bytes() == (room / "all.squashfs").read_bytes()
    assert [path.name for path in (room / "of-root").iterdir()] == ["all.squashfs"]


def test_one_layer_stays_as_it_is(room: Path, images: Images) -> None:
    for layer in images.layers:
        merge.merge([layer], room / "one.squashfs", with_root=False)
        assert (room / "one.squashfs").read_bytes() == layer.read_bytes()


@pytest.mark.parametrize("name", ["#remark", "tab\there", "line\nbreak"])
def test_names_that_cannot_pass(room: Path, name: str) -> None:
    (room / "odd").mkdir()
    (room / "odd" / name).write_text("x")
    squashfs.make(room / "odd", room / "odd.squashfs")
    expected = r"the layers odd\.squashfs cannot be merged: a file has an unusual name"
    with pytest.raises(BuildError, match=expected):
        merge.merge([room / "odd.squashfs"], room / "all.squashfs", with_root=True)
    assert not (room / "all.squashfs").exists()


def test_what_one_layer_cannot_say(room: Path, layers: list[Path]) -> None:
    (room / "top/gone").mkdir(parents=True)
    squashfs.make(room / "top", room / "top.squashfs")
    three = [*layers, room / "top.squashfs"]
    merge.merge(three, room / "all.squashfs", with_root=True)
    assert modes(room / "all.squashfs")["/gone"] == "drwxr-xr-x"
    with pytest.raises(BuildError, match="the directory 'gone' would have to hide what lies below"):
        merge.merge(three, room / "group.squashfs", with_root=False)
    assert sorted(path.name for path in room.glob("*group*")) == []


def test_a_damaged_layer(room: Path, layers: list[Path]) -> None:
    layers[1].write_bytes(layers[1].read_bytes()[:300])
    with pytest.raises(BuildError, match=r"high\.squashfs` cannot be unpacked"):
        merge.merge(layers, room / "all.squashfs", with_root=True)
    assert not [path for path in room.iterdir() if path.name.startswith(".merge-")]
