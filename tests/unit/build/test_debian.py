"""Roots of Debian packages: what is taken away, and what further packages change in a base."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.build import debian
from envbuild.store.tree import WHITEOUT, Tree, scan
from tests.support.trees import fill


def difference(tmp_path: Path, base: dict[str, str], now: dict[str, str]) -> Tree:
    below = scan(fill(tmp_path / "base", base))
    tree = fill(tmp_path / "now", now)
    left = debian.subtract(tree, scan(tree), below)
    assert scan(tree) == {path: what for path, what in left.items() if what != WHITEOUT}, (
        "what is told is what is there"
    )
    return left


def shown(lower: Tree, upper: Tree) -> dict[str, str]:
    """Return what an upper layer shows over a lower one."""
    entries = dict(lower)
    for path, what in upper.items():
        if not what.startswith("d "):
            entries = {name: held for name, held in entries.items() if not name.startswith(f"{path}/")}
        entries[path] = what
    return {path: what for path, what in entries.items() if what != WHITEOUT}


class TestSubtract:
    def test_nothing_changed(self, tmp_path: Path) -> None:
        same = {"usr/bin/a": "1", "bin": "-> usr/bin", "empty": "/"}
        assert dict(difference(tmp_path, same, same)) == {}

    def test_what_is_new_or_other_stays_with_the_directories_above_it(self, tmp_path: Path) -> None:
        left = difference(
            tmp_path,
            {"usr/bin/a": "1", "usr/bin/b": "1", "usr/lib/c": "1", "link": "-> a"},
            {"usr/bin/a": "1", "usr/bin/b": "2", "usr/lib/c": "1", "link": "-> b", "opt/d": "1"},
        )
        assert list(left) == ["link", "opt", "opt/d", "usr", "usr/bin", "usr/bin/b"]

    def test_a_mode_is_a_difference(self, tmp_path: Path) -> None:
        below = scan(fill(tmp_path / "base", {"d/a": "1", "d/b": "1"}))
        tree = fill(tmp_path / "now", {"d/a": "1", "d/b": "1"})
        (tree / "d" / "a").chmod(0o755)
        assert list(debian.subtract(tree, scan(tree), below)) == ["d", "d/a"]

    def test_what_is_gone_becomes_a_whiteout_of_the_topmost(self, tmp_path: Path) -> None:
        left = difference(tmp_path, {"d/e/a": "1", "d/e/b": "1", "d/c": "1", "f": "1"}, {"d/c": "1"})
        assert dict(left) == {"d": "d 0755", "d/e": WHITEOUT, "f": WHITEOUT}

    @pytest.mark.parametrize("instead", ["a file", "-> elsewhere"])
    def test_a_directory_that_became_something_else_needs_no_whiteouts(
        self, tmp_path: Path, instead: str
    ) -> None:
        left = difference(tmp_path, {"d/e/a": "1", "d/b": "1"}, {"d": instead})
        assert list(left) == ["d"]
        assert WHITEOUT not in left.values()

    def test_a_file_that_became_a_directory(self, tmp_path: Path) -> None:
        assert list(difference(tmp_path, {"d": "1"}, {"d/a": "1"})) == ["d", "d/a"]


paths = st.sampled_from(["a", "b", "a/a", "a/b", "a/a/a", "b/a"])
contents = st.sampled_from(["1", "2", "/", "-> x"])


def possible(entries: dict[str, str]) -> dict[str, str]:
    """What a disk could hold of it: nothing lies below a file or a link."""
    return {
        path: what
        for path, what in sorted(entries.items())
        if all(entries.get(parent.as_posix(), "/") == "/" for parent in Path(path).parents)
    }


@given(st.dictionaries(paths, contents), st.dictionaries(paths, contents))
def test_laid_over_the_base_the_difference_gives_the_root(
    tmp_path_factory: pytest.TempPathFactory, base: dict[str, str], now: dict[str, str]
) -> None:
    work = tmp_path_factory.mktemp("subtract")
    below = scan(fill(work / "base", possible(base)))
    tree = fill(work / "now", possible(now))
    whole = scan(tree)
    left = debian.subtract(tree, whole, below)
    assert shown(below, left) == dict(whole)


class TestBytecode:
    def test_python_takes_it_whatever_the_source_and_its_time_say(self, tmp_path: Path) -> None:
        source = tmp_path / "module.py"
        source.write_text("VALUE = 'compiled'\n")
        compiled = Path(py_compile.compile(str(source), doraise=True) or "")
        assert compiled.read_bytes()[4:8] == bytes(4), "time-stamped: what Debian's py3compile makes"
        debian.normalize_root(tmp_path, {})
        source.write_text("VALUE = 'read again'\n")
        os.utime(source, (0, 0))
        code = "import module; print(module.VALUE)"
        said = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert said.stdout == "compiled\n"

    def test_the_time_of_the_source_leaves_no_trace(self, tmp_path: Path) -> None:
        made = []
        for number, name in enumerate(("a", "b")):
            source = tmp_path / name / "module.py"
            source.parent.mkdir()
            source.write_text("x = 1\n")
            os.utime(source, (number, number))
            made.append(Path(py_compile.compile(str(source), dfile="/module.py", doraise=True) or ""))
        assert made[0].read_bytes() != made[1].read_bytes()
        debian.normalize_root(tmp_path, {})
        assert made[0].read_bytes() == made[1].read_bytes()
        assert made[0].read_bytes()[:4] == importlib.util.MAGIC_NUMBER
        assert made[0].read_bytes()[4:16] == b"\1\0\0\0" + bytes(8)

    def test_python_2_finds_the_time_that_all_files_have(self, tmp_path: Path) -> None:
        path = tmp_path / "module.pyc"
        path.write_bytes(b"\x03\xf3\r\n" + b"\x12\x34\x56\x78" + b"code")
        debian.normalize_root(tmp_path, {})
        assert path.read_bytes() == b"\x03\xf3\r\n" + bytes(4) + b"code"

    @pytest.mark.parametrize(
        "content",
        [b"", b"abcd", b"magi" + b"\1\0\0\0" + b"x" * 20, b"magi" + b"\3\0\0\0" + b"x" * 20],
        ids=["empty", "cut", "unchecked hash", "checked hash"],
    )
    def test_anything_else_stays_as_it_is(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.pyc").write_bytes(content)
        (tmp_path / "y.pyc").symlink_to("nowhere")
        (tmp_path / "z.pyc").mkdir()
        debian.normalize_root(tmp_path, {})
        assert (tmp_path / "x.pyc").read_bytes() == content


class TestClean:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return fill(
            tmp_path / "root",
            {
                "etc/hostname": "the host",
                "etc/resolv.conf": "-> ../run/resolv.conf",
                "etc/machine-id": "1",
                "etc/passwd": "root",
                "etc/passwd-": "before",
                "etc/shadow": "secret",
                "etc/apt/sources.list": "deb copy:///tmp/x ./",
                "var/lib/dpkg/status": "s",
                "var/lib/dpkg/status-old": "s",
                "var/log/dpkg.log": "yesterday",
                "var/cache/apt/pkgcache.bin": "x",
                "tmp/left": "x",
                "run/lock/x": "x",
                "usr/bin/su": "x",
            },
        )

    def test_what_is_left(self, root: Path) -> None:
        (root / "etc/shadow").chmod(0o000)
        (root / "usr/bin/su").chmod(0o4755)
        (root / "home").mkdir()
        (root / "home").chmod(0o700)
        debian.normalize_root(root, {})
        entries = scan(root)
        kinds = {path: what[:6] for path, what in entries.items() if not what.startswith("d 0755")}
        assert kinds == {
            "etc/hostname": "f 0644",
            "etc/hosts": "f 0644",
            "etc/localtime": "f 0644",
            "etc/passwd": "f 0644",
            "etc/resolv.conf": "f 0644",
            "etc/shadow": "f 0400",
            "tmp": "d 1777",
            "usr/bin/su": "f 0755",
            "var/lib/dpkg/status": "f 0644",
            "var/tmp": "d 1777",
        }
        assert (root / "etc/hostname").read_text() == ""
        assert {"opt/env", "opt/mpi", "opt/fabric", "opt/accel", "proc", "mnt"} <= entries.keys()

    def test_the_umask_decides_nothing(self, root: Path, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            debian.normalize_root(root, {"/x/y/run.sh": "#!/bin/sh\n", "/x/libs/": "", "/x/text": "t"})
        finally:
            os.umask(before)
        found = {
            path: stat.S_IMODE((root / path).stat().st_mode) for path in ("x", "x/y", "x/libs", "var/tmp")
        }
        assert found == {"x": 0o755, "x/y": 0o755, "x/libs": 0o755, "var/tmp": 0o1777}
        assert stat.S_IMODE((root / "x/y/run.sh").stat().st_mode) == 0o755
        assert stat.S_IMODE((root / "x/text").stat().st_mode) == 0o644
