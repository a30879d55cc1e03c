"""`module install --link`: the image stays where it lies, and is looked at before it is started."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from envbuild.activate.install import why_only_you
from envbuild.activate.installed import find_installed, select
from envbuild.activate.launcher import stamp_of
from envbuild.errors import RequestError
from envbuild.store.store import Store
from envbuild.system.apptainer import Apptainer
from envbuild.workflows.module import InstallRequest, install_module, list_modules
from envbuild.workflows.settings import Settings
from tests.support.images import read_manifest, read_sif
from tests.support.small_images import BASE, small_image
from tests.unit.activate.conftest import APPTAINER

GONE = "the image of pytorch-mpi/2026.11 is missing: "
CHANGED = "the image of pytorch-mpi/2026.11 has changed since it was installed: "


@pytest.fixture
def apptainer(tmp_path):
    """Stands in for Apptainer: prints what it was asked to start."""
    program = tmp_path / "apptainer"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return Apptainer(program=program, version="1.4.5")


def start(installed, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed.layout.home / "bin/python", "train.py"],
        capture_output=True,
        text=True,
        env={"PATH": path},
    )


def change(image: Path) -> None:
    """Make it another one of the same size, as a copy that was put in its place would be."""
    image.write_bytes(b"image two")
    os.utime(image, (1_000_000_000, 1_000_000_000))


def settings_of(installed) -> list[str]:
    lines = (installed.layout.home / "bin/launcher").read_text().splitlines()
    return [line for line in lines if line.startswith(("_eb_image=", "_eb_stamp="))]


def test_nothing_is_copied(put, image, manifest):
    installed = put(linked=True)
    names = sorted(path.name for path in installed.layout.home.iterdir())
    assert names == ["bin", "installed.json", "make_venv.py"]
    digest = manifest().digest.removeprefix("sha256:")[:16]
    assert str(installed.layout.home.readlink()) == f".2026.11-{digest}-link"
    record = json.loads((installed.layout.home / "installed.json").read_text())
    assert (record["image"], record["digest"]) == (str(image), manifest().digest)
    assert settings_of(installed) == [f"_eb_image={image}", f"_eb_stamp='{stamp_of(image)}'"]
    text = installed.layout.modulefile.read_text()
    assert "has changed since it was installed: $shown" in text
    assert f'"{int(image.stat().st_mtime)}" "{int(image.stat().st_ctime)}"' in text
    assert not put(linked=True).changed


def test_a_copy_is_compared_as_well(put):
    installed = put()
    copy = installed.layout.home / "image.sif"
    assert settings_of(installed) == [f"_eb_image={copy}", f"_eb_stamp='{stamp_of(copy)}'"]
    assert json.loads((installed.layout.home / "installed.json").read_text())["image"] == ""
    assert f'"{int(copy.stat().st_ctime)}"' in installed.layout.modulefile.read_text()


def test_a_copy_takes_its_place_and_the_other_way_round(put, manifest):
    release = put(linked=True).layout.home.resolve()
    copied = put()
    assert copied.replaced == release
    assert (copied.layout.home / "image.sif").is_file()
    again = put(linked=True)
    assert again.changed
    assert again.layout.home.resolve() == release
    (listed,) = find_installed(copied.layout.root)
    assert listed.kept == (copied.replaced.with_name(release.name.removesuffix("-link")),)


def test_a_relative_name_becomes_absolute(put, image, monkeypatch):
    monkeypatch.chdir(image.parent.parent)
    assert settings_of(put(image=Path("built/image.sif"), linked=True))[0] == f"_eb_image={image}"


def test_its_commands_start_the_image_where_it_lies(put, image, apptainer):
    done = start(put(linked=True, apptainer=apptainer))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [str(image), "python", "train.py"]


def test_its_commands_start_an_image_that_was_written_at_the_end_of_a_second(put, image, apptainer):
    os.utime(image, ns=(0, 1_600_000_000_999_999_999))
    done = start(put(linked=True, apptainer=apptainer))
    assert done.returncode == 0, done.stderr


def test_its_commands_start_where_no_program_tells_size_and_time(put, apptainer, tmp_path):
    """The modulefile has compared them, and an image that is there is better than none."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "readlink").symlink_to("/usr/bin/readlink")
    done = start(put(linked=True, apptainer=apptainer), path=str(programs))
    assert done.returncode == 0, done.stderr


def test_its_commands_say_that_the_image_is_another_one_or_gone(put, image, apptainer):
    installed = put(linked=True, apptainer=apptainer)
    change(image)
    done = start(installed)
    assert (done.returncode, done.stdout) == (121, "")
    assert done.stderr.splitlines()[0] == f"envbuild: {CHANGED}{image}"
    image.unlink()
    done = start(installed)
    assert (done.returncode, done.stdout) == (121, "")
    assert done.stderr.splitlines() == [f"envbuild: {GONE}{image}", "envbuild: install the module again"]


def test_installed_again_it_goes_on_with_what_is_there_now(put, image, apptainer):
    put(linked=True, apptainer=apptainer)
    change(image)
    installed = put(linked=True, apptainer=apptainer)
    assert installed.changed
    assert settings_of(installed)[1] == f"_eb_stamp='{stamp_of(image)}'"
    assert '"1000000000"' in installed.layout.modulefile.read_text()
    assert start(installed).returncode == 0


@pytest.mark.parametrize("closed", ["directory", "image"])
def test_an_image_that_others_cannot_read_is_reported(image, monkeypatch, closed):
    # What lies above the test's own directory may be closed to others as well.
    (image.parent if closed == "directory" else image).chmod(0o700)
    stat = Path.stat
    ours = {image, image.parent}

    def of(path, **options):
        found = stat(path, **options)
        return found if path in ours else os.stat_result((found.st_mode | 0o055, *found[1:]))

    monkeypatch.setattr(Path, "stat", of)
    assert why_only_you(image) == "only you can start this: others may not " + (
        f"enter `{image.parent}`, which holds its image" if closed == "directory" else f"read `{image}`"
    )
    image.parent.chmod(0o755)
    image.chmod(0o644)
    assert why_only_you(image) is None


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(Settings, "find_apptainer", lambda *_: APPTAINER)
    return Settings(store=Store(tmp_path / "store"), emit=lambda _: None)


@pytest.mark.parametrize("link", [False, True])
def test_modules_are_listed_with_where_their_image_lies(tmp_path, settings, link):
    image = small_image(tmp_path, BASE)
    root = tmp_path / "sw"
    install_module(InstallRequest(image=image, root=root, link=link), settings)
    (listed,) = list_modules(root, settings)
    module = listed.module
    assert module.record is not None
    assert module.record.image == (str(image) if link else "")
    assert module.image == (image if link else root / "envs/demo/2026.11/image.sif")
    assert (module.problems, listed.state) == ((), "absent")
    assert (select(root, "demo", None, every=False)[0].in_use or Path()).name.endswith("-link") is link


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("harmed", ["the header", "layer layer-0", "the tables of its file system"])
def test_an_image_that_is_not_as_built_is_not_installed(tmp_path, settings, link, harmed):
    image = small_image(tmp_path, BASE)
    system, root = read_manifest(image).file_system, read_sif(image).root
    assert system is not None
    assert root is not None
    places = {"the header": 8, "layer layer-0": root.offset + system.layers[0].offset}
    place = places.get(harmed, root.offset + system.tables_offset)
    content = bytearray(image.read_bytes())
    content[place] ^= 1
    image.write_bytes(content)
    with pytest.raises(RequestError, match=f"^`small.sif` was changed or damaged: {harmed}"):
        install_module(InstallRequest(image=image, root=tmp_path / "sw", link=link), settings)
    assert not (tmp_path / "sw").exists()
