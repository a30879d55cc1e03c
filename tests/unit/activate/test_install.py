import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from envbuild.activate.model import choose_commands
from envbuild.cli.main import app
from envbuild.cli.module import install as install_command
from envbuild.errors import EnvbuildError, MachineError, ManyErrors, RequestError
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import SiteBind, SiteMpi
from envbuild.system.leftovers import own_name


def listing(root: Path) -> dict[str, tuple[int, int, int]]:
    """Everything below, with modes, inodes and times: what a run that changes nothing leaves as it was."""
    return {
        str(path): (os.lstat(path).st_mode, os.lstat(path).st_ino, os.lstat(path).st_mtime_ns)
        for path in root.rglob("*")
    }


def test_the_copy_of_the_image_may_be_made_first(put, tmp_path):
    """As `lfs setstripe` makes it, on Lustre."""
    made = []

    def create(path):
        path.touch(0o644)
        made.append(path.name.partition(".envbuild-")[0])
        return True

    installed = put(create=create)
    assert made == [".image.sif"]
    image = installed.layout.home / "image.sif"
    assert image.read_bytes() == b"image one"
    assert stat.S_IMODE(image.stat().st_mode) == 0o644


def test_the_layout(put, tmp_path, manifest):
    installed = put()
    root = tmp_path / "sw"
    assert installed.layout.modulefile == root / "modulefiles/pytorch-mpi/2026.11"
    assert installed.layout.modulefile.read_text().startswith("#%Module")
    assert [path.name for path in installed.layout.modulefile.parent.iterdir()] == ["2026.11"]
    assert installed.layout.label == "pytorch-mpi/2026.11"
    assert installed.layout.home == root / "envs/pytorch-mpi/2026.11"
    assert (installed.layout.home / "image.sif").read_bytes() == b"image one"
    assert sorted(path.name for path in installed.layout.home.iterdir()) == [
        "bin",
        "image.sif",
        "installed.json",
        "make_venv.py",
    ]
    assert {path.name for path in (installed.layout.home / "bin").iterdir()} == {
        "launcher",
        *installed.commands,
    }
    assert (installed.changed, installed.replaced, installed.default) == (True, None, False)
    assert manifest().digest.removeprefix("sha256:")[:16] in installed.layout.home.readlink().name


def test_what_a_killed_run_began_goes_with_the_next(put, tmp_path):
    shelf = put().layout.releases_dir
    before = sorted(path.name for path in shelf.iterdir())
    begun = shelf / (".stage-" + own_name().replace(f"-{os.getpid()}-", "-99999999-"))
    begun.mkdir()
    (begun / "image.sif").write_text("half")
    shutil.rmtree((tmp_path / "sw/envs/pytorch-mpi/2026.11").resolve())
    put()
    assert sorted(path.name for path in shelf.iterdir()) == before


def test_others_can_read_it_whatever_the_umask(put, tmp_path):
    before = os.umask(0o077)
    try:
        put()
    finally:
        os.umask(before)
    for path in (tmp_path / "sw").rglob("*"):
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        if path.is_symlink():
            continue
        assert mode == (0o755 if path.is_dir() or path.name == "launcher" else 0o644), path
    assert stat.S_IMODE((tmp_path / "sw").stat().st_mode) == 0o755


def test_it_outlives_the_build_directory(put, image):
    installed = put()
    shutil.rmtree(image.parent)
    assert (installed.layout.home / "image.sif").read_bytes() == b"image one"


def test_doing_it_again_changes_nothing(put, tmp_path):
    put()
    before = listing(tmp_path / "sw")
    again = put()
    assert not again.changed
    assert listing(tmp_path / "sw") == before


def test_damage_is_repaired(put):
    installed = put()
    (installed.layout.home / "image.sif").write_bytes(b"cut")
    (installed.layout.home / "bin/python").unlink()
    (installed.layout.home / "bin/launcher").chmod(0o600)
    assert put().changed
    assert (installed.layout.home / "image.sif").read_bytes() == b"image one"
    (installed.layout.home / "image.sif").write_bytes(b"image 0ne")
    assert put().changed
    assert (installed.layout.home / "image.sif").read_bytes() == b"image one"
    assert stat.S_IMODE((installed.layout.home / "bin/python").stat().st_mode) == 0o755


def test_another_image_takes_the_place_and_the_old_one_stays(put, manifest, tmp_path):
    old = put()
    running = (old.layout.home / "image.sif").open("rb")
    other = tmp_path / "built/other.sif"
    other.write_bytes(b"image two")
    new = put(image=other, runnable=manifest(summary="another"))
    assert new.layout.home == old.layout.home
    assert (new.layout.home / "image.sif").read_bytes() == b"image two"
    assert new.replaced is not None
    assert (new.replaced / "image.sif").read_bytes() == b"image one"
    with running:
        assert running.read() == b"image one"
    back = put()
    assert back.changed
    assert back.replaced == new.layout.home.parent / f".2026.11-{manifest(summary='another').digest[7:23]}"


def test_versions_live_side_by_side(put, manifest):
    first, second = put(), put(runnable=manifest(version="2026.12"))
    assert first.layout.modulefile.exists()
    assert second.layout.modulefile.exists()
    assert second.replaced is None


def test_an_interrupted_copy_leaves_no_trace_of_a_module(put, tmp_path):
    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put(copied=stop)
    assert [path for path in (tmp_path / "sw").rglob("*") if not path.is_dir()] == []
    assert put().changed


def test_two_at_once_end_with_one(put, monkeypatch, tmp_path):
    """The other one publishes the release while we stage ours."""
    renamed: list[Path] = []
    rename = Path.rename

    def slow(self, target):
        if not renamed:
            renamed.append(self)
            put()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", slow)
    put()
    names = sorted(path.name for path in (tmp_path / "sw/envs/pytorch-mpi").iterdir())
    assert len(names) == 2
    assert names[1] == "2026.11"


def test_copying_falls_back_where_the_kernel_cannot_clone(put, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert (put().layout.home / "image.sif").read_bytes() == b"image one"


def test_progress_counts_every_byte(put):
    counts: list[int] = []
    put(copied=counts.append)
    assert sum(counts) == len(b"image one")


@pytest.mark.redteam
@pytest.mark.parametrize(
    "name",
    ["a:b", "a\nb", "a\x1bb", "a b", "a'b", 'a"b', "$(touch BAD)", "`id`", "a;b", "a{b", "M\u00fcller"],
)
def test_a_root_at_which_module_systems_fail_is_refused(put, tmp_path, name):
    """Lmod passes the path of a Tcl modulefile to a shell."""
    with pytest.raises(RequestError, match="module systems fail at"):
        put(root=tmp_path / name)
    assert not (tmp_path / name).exists()


def test_an_unwritable_root_is_the_users_to_choose(put, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot install under") as caught:
        put(root=tmp_path / "file" / "below")
    assert "--root" in str(caught.value.hint)


def test_a_full_disk_is_the_machines(put, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(MachineError, match="no space left"):
        put()


def test_a_refused_name_leaves_nothing_behind(put, tmp_path, manifest):
    with pytest.raises(EnvbuildError):
        put(runnable=manifest(version="default"))
    assert not (tmp_path / "sw").exists()


@pytest.mark.parametrize("name", ["2026.11", "2026.11.lua"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_modulefile_of_somebody_else_is_not_written_over(put, tmp_path, name, kind):
    theirs = tmp_path / "sw/modulefiles/pytorch-mpi" / name
    theirs.parent.mkdir(parents=True)
    if kind == "file":
        theirs.write_text("#%Module1.0\nprepend-path PATH /theirs\n")
    else:
        theirs.symlink_to(tmp_path / "nowhere")
    before = listing(tmp_path / "sw")
    with pytest.raises(RequestError, match="envbuild did not make it") as caught:
        put()
    assert caught.value.at is not None
    assert caught.value.at.path == theirs
    assert listing(tmp_path / "sw") == before


def test_both_modulefiles_of_somebody_else_are_reported_at_once(put, tmp_path):
    directory = tmp_path / "sw/modulefiles/pytorch-mpi"
    directory.mkdir(parents=True)
    for name in ("2026.11", "2026.11.lua"):
        (directory / name).write_text("theirs")
    with pytest.raises(ManyErrors) as caught:
        put()
    assert len(caught.value.errors) == 2


def test_binds_of_the_site_reach_the_launcher(put):
    installed = put(binds=(SiteBind(source="/scratch"),))
    assert (
        '/scratch\t"type=bind","src=/scratch","dst=/scratch"'
        in (installed.layout.home / "bin/launcher").read_text()
    )


def test_a_relative_root_becomes_absolute(put, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert put(root=Path("here")).layout.modulefile == tmp_path / "here/modulefiles/pytorch-mpi/2026.11"


def test_what_to_run_next_is_shown(tmp_path, monkeypatch, capsys, put):
    installed = put()
    monkeypatch.setattr("envbuild.workflows.module.install_module", lambda *_, **__: installed)
    install_command([Path("a.sif")], root=Path("sw"))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"next: module use {tmp_path}/sw/modulefiles && module load pytorch-mpi/2026.11"


def test_an_empty_root_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="name of a directory is empty"):
        app(["module", "install", "a.sif", "--root", ""], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mpi", "has_launcher"), [(("libmpi.so.12",), False), ((), True)])
def test_the_images_mpiexec_stays_unless_the_host_lends_its_mpi(put, tmp_path, manifest, mpi, has_launcher):
    library = tmp_path / "libmpi.so.12"
    library.write_bytes(b"")
    lent = HostLibraryPlan(
        mpi=SiteMpi(implementation="mpich") if mpi else None,
        mpi_files=mpi,
        files={"libmpi.so.12": str(library)},
        environment={"FI_PROVIDER": "cxi", "LD_LIBRARY_PATH": "/media/envbuild"},
    )
    commands, _ = choose_commands(manifest(), on_host_mpi=bool(lent.mpi_files))
    installed = put(host_libs=lent, commands=commands)
    launcher = (installed.layout.home / "bin/launcher").read_text()
    assert (installed.layout.home / "bin/mpiexec").is_symlink() is has_launcher
    assert "export APPTAINERENV_FI_PROVIDER=cxi" in launcher
    assert f"src={library}" in launcher
    assert (installed.layout.home / "host/envbuild/libmpi.so.12").read_bytes() == b""
