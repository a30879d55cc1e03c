"""Hosts that lack what Debian 12 has: no apt, no FUSE, no overlay for users, an older util-linux.

main_job/test_layers has hosts without user namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.system import apptainer
from envbuild.system.leftovers import remove_leftover
from tests.integration.conftest import Desk, blob_of, layers, make_desk
from tests.support.torture.ground import Ground

_OTHER_FILES = Path(__file__).parents[2] / "support/other-files.sh"
_OF_DEBIAN = ("apt", "apt-cache", "apt-get", "dpkg", "dpkg-deb", "mmdebstrap", "debootstrap", "gpgv")
# As in RHEL 9 and SLES 15: unshare(1) maps subordinate ids since util-linux 2.38.
_OLD_UNSHARE = """\
#!/bin/sh
for word; do
    case $word in
        --help) {unshare} --help | grep -v -e --map-users -e --map-groups -e --map-auto; exit ;;
        --map-users* | --map-groups* | --map-auto*) echo "unshare: unrecognized option '$word'" >&2; exit 1 ;;
        --) break ;;
    esac
done
exec {unshare} "$@"
"""


def other_files(files: Mapping[str, Path]) -> list[str]:
    """Return a command prefix for a host that has other files at some paths."""
    return ["sh", str(_OTHER_FILES), *(f"{path}={file}" for path, file in files.items()), "--"]


@pytest.fixture
def old_unshare(tmp_path: Path) -> str:
    """A PATH whose first `unshare` is older."""
    program = tmp_path / "old/unshare"
    program.parent.mkdir()
    program.write_text(_OLD_UNSHARE.format(unshare=shutil.which("unshare")))
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.mark.slow  # bases/test_roots builds on finished roots, here with Debian's tools on PATH
def test_a_host_without_apt_builds_on_a_finished_root(ground: Ground) -> None:
    programs = filter(None, map(shutil.which, _OF_DEBIAN))
    # A device cannot be started.
    host = other_files(dict.fromkeys(programs, Path("/dev/null")))
    desk = ground.desk("no-apt")
    said = ground.run(["doctor", "build"], desk, before=host)
    assert said.returncode == 5
    assert "`apt-get` is not on this machine" in said.stdout
    assert "`mmdebstrap` is not on this machine" in said.stdout
    built = ground.run(ground.build(), desk, before=host)
    assert built.returncode == 0, built.stderr
    assert ground.is_reference(desk / "tiny.sif")
    # Only what needs Debian's archive is refused, with the program.
    (desk / "debian.yaml").write_text('name: debian\nversion: "1"\nbase: debian-12\n')
    refused = ground.run(["lock", "debian.yaml"], desk, before=host)
    assert refused.returncode == 5
    assert "is not on this machine" in refused.stderr


def test_a_host_without_fuse_is_named_and_not_the_image(ground: Ground) -> None:
    desk = ground.desk("no-fuse")
    closed = desk / "closed"
    closed.touch(mode=0o000)
    host = other_files({"/dev/fuse": closed})
    shutil.copy(ground.place / "tiny.sif", desk)
    said = ground.run(["doctor", "test"], desk, before=host)
    assert said.returncode == 5
    assert "/dev/fuse cannot be used by this user" in said.stdout
    refused = ground.run(["test", "tiny.sif"], desk, before=host)
    assert refused.returncode == 5, refused.stderr
    assert "/dev/fuse cannot be used by this user" in refused.stderr
    assert "FAIL" not in refused.stdout
    assert ground.run(["exec", "tiny.sif", "python3", "-V"], desk).stdout.startswith("Python 3.11")


def test_a_host_without_overlay_builds_and_starts_images(ground: Ground) -> None:
    program = apptainer.find()
    settings = dict(line.split("=", 1) for line in program.buildcfg().splitlines() if "=" in line)
    original = Path(settings["APPTAINER_CONF_FILE"])
    desk = ground.desk("no-overlay")
    text = original.read_text()
    (desk / "conf").write_text(text.replace("enable overlay = yes", "enable overlay = no"))
    assert "enable overlay = no" in (desk / "conf").read_text()
    host = other_files({str(original): desk / "conf"})
    built = ground.run(ground.build(), desk, before=host)
    assert built.returncode == 0, built.stderr
    assert ground.is_reference(desk / "tiny.sif")
    (desk / "data").mkdir()
    (desk / "data/file").write_text("of the host")
    # Apptainer makes the missing directory of the bind without an overlay, too.
    (desk / "site.yaml").write_text(f"name: here\nbinds: [{{source: {desk}/data, target: /not/there}}]\n")
    words = ["module", "install", "tiny.sif", "--root", "modules", "--site", "site.yaml"]
    installed = ground.run(words, desk, before=host)
    assert installed.returncode == 0, installed.stderr
    python = str(desk / "modules/envs/tiny/1/bin/python3")
    started = subprocess.run(
        [*host, python, "-c", "import alpha; print(open('/not/there/file').read())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert started.stdout == "of the host\n"


def test_leftovers_of_subordinate_ids_are_removed_by_an_older_util_linux(
    public: Path, old_unshare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = public / "left"
    make = f"mkdir -p {left}/root/etc && chown -R 1:1 {left}/root && chmod -R 700 {left}/root"
    public.chmod(0o777)
    subprocess.run(["unshare", "--map-root-user", "--map-auto", "sh", "-c", make], check=True)
    monkeypatch.setenv("PATH", old_unshare)
    assert subprocess.run(["unshare", "--map-auto", "true"], check=False, capture_output=True).returncode == 1
    remove_leftover(left)
    assert not left.exists()


@pytest.mark.slow  # it makes the base again
def test_an_older_util_linux_makes_the_same_base(
    desk: Desk, debian_12: Path, shared: Path, installed: Path, old_unshare: str
) -> None:
    other = make_desk(shared, "old-util-linux", installed)
    for name in ("plain.yaml", "plain.lock.yaml"):
        other.write(name, (desk.place / name).read_text())
    other.envbuild("build", "plain.yaml", "--locked", env={"PATH": old_unshare})
    base = blob_of(other, layers(other, "plain.yaml")["base"]["key"])
    assert base.read_bytes() == debian_12.read_bytes()
