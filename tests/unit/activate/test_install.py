import errno
import os
import shlex
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.activate.model import VerdictNote
from envbuild.cli.module import install as install_command
from envbuild.errors import EnvbuildError, MachineError, ManyErrors, RequestError
from envbuild.site.inject import Injection
from envbuild.spec.site import Site, SiteBind
from envbuild.system.leftovers import own_name
from tests.unit.activate.conftest import APPTAINER


def listing(root: Path) -> dict[str, tuple[int, int, int]]:
    """Everything below, with modes, inodes and times: what a run that changes nothing leaves as it was."""
    return {
        str(path): (os.lstat(path).st_mode, os.lstat(path).st_ino, os.lstat(path).st_mtime_ns)
        for path in root.rglob("*")
    }


def test_the_layout(put, tmp_path, manifest):
    installed = put()
    root = tmp_path / "sw"
    assert installed.modulefile == root / "modulefiles/pytorch-mpi/2026.11.lua"
    assert installed.tcl_modulefile == root / "modulefiles/pytorch-mpi/2026.11"
    assert installed.tcl_modulefile.read_text().startswith("#%Module")
    assert installed.modulefiles == root / "modulefiles"
    assert installed.module == "pytorch-mpi/2026.11"
    assert installed.home == root / "envs/pytorch-mpi/2026.11"
    assert (installed.home / "image.sif").read_bytes() == b"image one"
    assert sorted(path.name for path in installed.home.iterdir()) == [
        "bin",
        "image.sif",
        "installed.json",
        "make_venv.py",
    ]
    assert not (installed.modulefile.parent / ".version").exists()
    assert {path.name for path in (installed.home / "bin").iterdir()} == {"launcher", *installed.commands}
    assert (installed.changed, installed.replaced, installed.warnings) == (True, None, ())
    assert installed.to_data()["home"] == str(installed.home)
    assert manifest().digest.removeprefix("sha256:")[:16] in installed.home.readlink().name


def test_what_a_killed_run_began_goes_with_the_next(put, tmp_path):
    shelf = put().home.resolve().parent
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
    assert (installed.home / "image.sif").read_bytes() == b"image one"


def test_doing_it_again_changes_nothing(put, tmp_path):
    put()
    before = listing(tmp_path / "sw")
    again = put()
    assert not again.changed
    assert listing(tmp_path / "sw") == before


def test_a_new_verdict_changes_the_modulefiles_alone(put, tmp_path):
    installed = put(verdict=VerdictNote(state="absent"))
    before = listing(tmp_path / "sw")
    again = put()
    after = listing(tmp_path / "sw")
    assert again.changed
    changed = {path for path in after if before.get(path) != after[path]}
    files = {str(installed.modulefile), str(installed.tcl_modulefile)}
    assert changed == {*files, str(installed.modulefile.parent)}


def test_what_was_damaged_is_mended(put):
    installed = put()
    (installed.home / "image.sif").write_bytes(b"cut")
    (installed.home / "bin/python").unlink()
    (installed.home / "bin/launcher").chmod(0o600)
    assert put().changed
    assert (installed.home / "image.sif").read_bytes() == b"image one"
    (installed.home / "image.sif").write_bytes(b"image 0ne")
    assert put().changed
    assert (installed.home / "image.sif").read_bytes() == b"image one"
    assert stat.S_IMODE((installed.home / "bin/python").stat().st_mode) == 0o755


def test_another_image_takes_the_place_and_the_old_one_stays(put, manifest, tmp_path):
    old = put()
    running = (old.home / "image.sif").open("rb")
    other = tmp_path / "built/other.sif"
    other.write_bytes(b"image two")
    new = put(image=other, manifest=manifest(summary="another"))
    assert new.home == old.home
    assert (new.home / "image.sif").read_bytes() == b"image two"
    assert new.replaced is not None
    assert (new.replaced / "image.sif").read_bytes() == b"image one"
    with running:
        assert running.read() == b"image one"
    back = put()
    assert back.changed
    assert back.replaced == new.home.parent / f".2026.11-{manifest(summary='another').digest[7:23]}"


def test_versions_live_side_by_side(put, manifest):
    first, second = put(), put(manifest=manifest(version="2026.12"))
    assert first.modulefile.exists()
    assert second.modulefile.exists()
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
    assert (put().home / "image.sif").read_bytes() == b"image one"


def test_progress_counts_every_byte(put):
    counts: list[int] = []
    put(copied=counts.append)
    assert sum(counts) == len(b"image one")


@pytest.mark.parametrize("name", ["with:colon", "with\nline", "with\x1bescape"])
def test_a_root_that_cannot_stand_in_path_is_refused(put, tmp_path, name):
    with pytest.raises(RequestError, match="cannot stand in PATH"):
        put(root=tmp_path / name)


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
        put(manifest=manifest(commands=("sh",)))
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


def test_both_modulefiles_of_somebody_else_are_told_at_once(put, tmp_path):
    directory = tmp_path / "sw/modulefiles/pytorch-mpi"
    directory.mkdir(parents=True)
    for name in ("2026.11", "2026.11.lua"):
        (directory / name).write_text("theirs")
    with pytest.raises(ManyErrors) as caught:
        put()
    assert len(caught.value.errors) == 2


def test_binds_of_the_site_reach_the_launcher(put):
    site = Site(name="here", binds=(SiteBind(source="/scratch", target="/scratch", writable=True),))
    installed = put(site=site)
    assert (
        '/scratch\t"type=bind","src=/scratch","dst=/scratch"' in (installed.home / "bin/launcher").read_text()
    )


def test_a_relative_root_and_apptainer_become_absolute(put, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    installed = put(root=Path("here"), apptainer=replace(APPTAINER, program=Path("bin/apptainer")))
    assert installed.modulefile.is_absolute()
    assert f"_eb_apptainer={tmp_path}/bin/apptainer\n" in (installed.home / "bin/launcher").read_text()


def test_every_state_but_a_pass_warns(put):
    assert put(verdict=VerdictNote(state="stale", text="kernel")).warnings == (
        "test verdict: stale: tested on another host, or before this one changed (kernel)",
    )


@pytest.mark.parametrize("name", ["with space", "with'quote"])
def test_what_to_run_next_can_be_pasted(tmp_path, monkeypatch, capsys, put, name):
    installed = put(root=tmp_path / name)
    monkeypatch.setattr("envbuild.workflows.module.install_module", lambda *_, **__: installed)
    install_command(Path("a.sif"), root=str(tmp_path / name))
    line = capsys.readouterr().err.splitlines()[-1].removeprefix("next: ")
    assert shlex.split(line)[:3] == ["module", "use", str(installed.modulefiles)]


def test_an_empty_root_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="root for modules is empty"):
        install_command(Path("a.sif"), root="")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mpi", "has_launcher"), [(("libmpi.so.12",), False), ((), True)])
def test_the_images_mpiexec_stays_unless_the_host_lends_its_mpi(put, tmp_path, mpi, has_launcher):
    library = tmp_path / "libmpi.so.12"
    library.write_bytes(b"")
    lent = Injection(
        implementation="mpich" if mpi else "",
        version="",
        abis=(),
        mpi=mpi,
        files={"libmpi.so.12": str(library)},
        links={},
        companions=(),
        environment={"FI_PROVIDER": "cxi", "LD_LIBRARY_PATH": "/media/envbuild"},
    )
    installed = put(injection=lent)
    launcher = (installed.home / "bin/launcher").read_text()
    assert (installed.home / "bin/mpiexec").is_symlink() is has_launcher
    assert "export APPTAINERENV_FI_PROVIDER=cxi" in launcher
    assert f"src={library}" in launcher
    assert (installed.home / "host/envbuild/libmpi.so.12").read_bytes() == b""
