"""What is seen of a machine: files and variables of a made one, and try-outs on real file systems."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.doctor.look import directory, look
from envbuild.doctor.model import Machine
from envbuild.system import tools
from envbuild.system.survey import Survey

BUILDCFG = "LIBEXECDIR=/libexec\nAPPTAINER_CONF_FILE=/etc/apptainer/apptainer.conf\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with an Apptainer of its own."""
    for name, text in {
        "etc/os-release": "ID=debian\n",
        "etc/subuid": "somebody:1:65536\n",
    }.items():
        write(tmp_path / name, text)
    program(tmp_path / "usr/bin/apptainer", version="1.4.5")
    return tmp_path


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def program(path: Path, *, version: str) -> None:
    text = (
        f"#!/bin/sh\ncase $1 in --version) echo apptainer version {version};; *) echo '{BUILDCFG}';; esac\n"
    )
    write(path, text, mode=0o755)


def seen(root: Path, variables: Mapping[str, str] | None = None) -> Machine:
    survey = Survey(root=root, architecture="amd64", variables={"PATH": "/usr/bin", **(variables or {})})
    return look(store=root / "store", named=root / "usr/bin/apptainer", survey=survey)


def test_what_files_say(root: Path) -> None:
    machine = seen(root)
    assert machine.debian
    assert machine.subordinate_ids == 0, "the ids of another are none of ours"
    assert (machine.runtime.version, machine.runtime.setuid) == ("1.4.5", False)


def test_a_name_or_number_owns_subordinate_ids(root: Path) -> None:
    for name in ("subuid", "subgid"):
        write(root / f"etc/{name}", f"{os.geteuid()}:100000:65536\nother:1:1\n\nbroken:1\n")
    assert seen(root).subordinate_ids == 65_536


def test_a_starter_counts_with_its_bit_alone(root: Path) -> None:
    starter = root / "libexec/apptainer/bin/starter-suid"
    write(starter, "", mode=0o755)
    assert not seen(root).runtime.setuid
    starter.chmod(0o4755)
    assert seen(root).runtime.setuid == (starter.stat().st_uid == 0)


def test_an_old_apptainer_and_none(root: Path) -> None:
    program(root / "usr/bin/apptainer", version="1.0.3")
    assert (seen(root).runtime.version, seen(root).runtime.oldest) == ("1.0.3", "1.1")
    write(root / "usr/bin/apptainer", "#!/bin/sh\nexit 1\n", mode=0o755)
    assert seen(root).runtime.version == ""
    assert seen(root).runtime.path


@pytest.mark.parametrize(
    ("says", "release"),
    [
        ("mksquashfs version 4.5.1 (2022/03/17)", (4, 5, 1)),
        ("mksquashfs version 4.7 (2025/06/04)", (4, 7)),
        ("nothing", ()),
    ],
)
def test_the_release_of_mksquashfs_is_read(root: Path, says: str, release: tuple[int, ...]) -> None:
    assert seen(root).mksquashfs == ()
    write(root / "usr/bin/mksquashfs", f"#!/bin/sh\n[ $1 != -version ] || echo '{says}'\n", mode=0o755)
    assert seen(root).mksquashfs == release


@pytest.mark.parametrize("content", ["", "\x7fELF of nowhere"])
def test_a_program_that_cannot_be_started_is_none(root: Path, content: str) -> None:
    for name in ("mksquashfs", "unshare"):
        write(root / "usr/bin" / name, content, mode=0o755)
    write(root / "usr/bin/ldd", "#!/bin/sh\nexit 1\n", mode=0o755)
    write(root / "usr/bin/mmdebstrap", "#!/bin/sh\n")
    machine = seen(root, {"PATH": "/nowhere:/usr/bin"})
    assert machine.broken == {name: f"/usr/bin/{name}" for name in ("mksquashfs", "unshare")}
    assert (machine.programs["mksquashfs"], machine.programs["mmdebstrap"]) == ("", "")
    assert machine.programs["ldd"] == "/usr/bin/ldd", "it is started, whatever it says"


def test_a_uv_that_cannot_be_started_is_none(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen(root).programs["uv"]
    write(tmp_path / "uv", "")
    monkeypatch.setattr(tools, "locate", lambda _: tmp_path / "uv")
    machine = seen(root)
    assert (machine.programs["uv"], machine.broken) == ("", {"uv": str(tmp_path / "uv")})


def test_one_of_the_programs_that_check_signatures_will_do(root: Path) -> None:
    assert seen(root, {"PATH": "/usr/bin"}).programs["gpgv"] == ""
    for name in ("gpgv1", "gpgv2", "gpgv"):
        write(root / "usr/bin" / name, "#!/bin/sh\n", mode=0o755)
        assert seen(root, {"PATH": "/usr/bin"}).programs["gpgv"] == f"/usr/bin/{name}"


def test_module_systems_and_slurm(root: Path) -> None:
    assert (seen(root).module_system, seen(root).slurm) == ("", False)
    assert seen(root, {"LMOD_CMD": "/x", "MODULESHOME": "/y"}).module_system == "lmod"
    assert seen(root, {"MODULESHOME": "/y"}).module_system == "tmod"
    assert seen(root, {"SLURM_JOB_ID": "1"}).slurm
    write(root / "etc/slurm/slurm.conf", "")
    assert seen(root).slurm


@pytest.mark.parametrize(
    ("variables", "encoding"),
    [
        ({}, "utf-8"),
        ({"LANG": "C"}, "utf-8"),
        ({"LANG": "de_DE.ISO-8859-1"}, "iso-8859-1"),
        ({"LANG": "de_DE.ISO-8859-1", "LC_ALL": "C.UTF-8"}, "utf-8"),
    ],
    ids=str,
)
def test_encodings(root: Path, variables: dict[str, str], encoding: str) -> None:
    assert seen(root, variables).encoding == encoding


def test_a_locale_that_is_nowhere(root: Path) -> None:
    assert seen(root, {"LC_ALL": "C.UTF-8"}).locale_works
    assert not seen(root, {"LC_ALL": "xx_XX.UTF-8"}).locale_works


def test_squashfuse_beside_apptainer_counts(root: Path) -> None:
    own = root / "usr/libexec/apptainer/bin/squashfuse_ll"
    # The named Apptainer is found under its full path, which the survey looks up below its root.
    write(Path(f"{root}{own}"), "#!/bin/sh\n", mode=0o755)
    assert seen(root).programs["squashfuse_ll"] == str(own)


def test_the_file_system_is_the_last_that_was_mounted(tmp_path: Path) -> None:
    mounts = (
        f"a / ext4 rw 0 0\nb {tmp_path} ext4 rw 0 0\nc {tmp_path} nfs4 rw,noexec 0 0\nd /tmpx tmpfs rw 0 0\n"
    )
    write(tmp_path / "proc/mounts", mounts)
    found = directory(tmp_path, Survey(root=tmp_path, architecture="amd64"))
    assert (found.file_system, found.no_exec) == ("nfs4", True)


def test_a_directory_that_is_not_there_is_judged_by_where_it_would_be(tmp_path: Path) -> None:
    found = directory(tmp_path / "a/b", Survey())
    assert found.path == str(tmp_path / "a/b")
    assert found.writable
    assert found.free_bytes > 0
    assert not (tmp_path / "a").exists()


def test_a_link_that_leads_nowhere_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "unmounted" / "store")
    seen = directory(tmp_path / "store" / "below", Survey())
    assert not seen.writable
    assert seen.free_bytes > 0


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not directory(tmp_path / "file", Survey()).writable


def test_trying_leaves_nothing_behind(tmp_path: Path) -> None:
    found = directory(tmp_path, Survey())
    assert (found.hard_links, found.locks) == (True, True)
    assert list(tmp_path.iterdir()) == []


def test_what_a_file_system_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> object:
        def call(*words: object) -> None:
            raise OSError(number, "x")

        return call

    monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    monkeypatch.setattr(os, "setxattr", refuse(errno.EOPNOTSUPP))
    found = directory(tmp_path, Survey())
    assert (found.hard_links, found.locks, found.attributes) == (False, False, False)
    monkeypatch.setattr(fcntl, "flock", refuse(errno.EWOULDBLOCK))
    assert directory(tmp_path, Survey()).locks, "another holds it: there are locks"


def test_a_directory_that_others_may_not_pass(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert not directory(tmp_path, Survey()).passable
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
