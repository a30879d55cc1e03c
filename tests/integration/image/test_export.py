"""An image in other forms: what the image shows, the same bytes for everybody, nothing by halves."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import resource
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.events import Event, TaskAdvanced, TaskDone, TaskFailed, TaskStarted
from envbuild.image import shifter
from envbuild.image.export import Written
from envbuild.image.model import Variable
from envbuild.system import squashfs
from envbuild.workflows.choices import ExportFormat
from envbuild.workflows.export import export_image
from tests.integration.conftest import make_desk
from tests.integration.image.conftest import LOCK, Sample
from tests.support import trees, users
from tests.support.images import read_sif
from tests.support.podman import podman, podman_home
from tests.support.squashfs_images import assert_kernel_accepts, list_with_unsquashfs

FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)


def exported(image: Path, form: ExportFormat, path: Path) -> Written:
    return export_image(image, form, path, lambda _: None)


def file_system_of(image: Path) -> bytes:
    """Return the file system of an image, byte by byte."""
    root = read_sif(image).root
    assert root is not None
    return image.read_bytes()[root.offset : root.end]


def shown_of(image: Path, scratch: Path) -> dict[str, tuple[object, ...]]:
    """Return what an image shows, as unsquashfs reads it."""
    root = read_sif(image).root
    assert root is not None
    return list_with_unsquashfs(image, scratch, root.offset)


def compression(path: Path) -> str:
    told = subprocess.run(["unsquashfs", "-s", path], capture_output=True, text=True, check=True)
    return next(
        line.removeprefix("Compression ") for line in told.stdout.splitlines() if "Compression" in line
    )


@pytest.fixture(scope="module")
def gzip_image(sample: Sample) -> Iterator[Path]:
    """The image as it is built for kernels without zstd."""
    with users.shared_directory() as directory:
        layers = {}
        for name, blob in sample.layers.items():
            layers[name] = directory / f"{name}.squashfs"
            squashfs.recompress_gzip(blob, layers[name])
        image = directory / "gzip.sif"
        trees.write_image(image, layers, lock=LOCK)
        yield image


# Apptainer writes these for the user at each start: their time is that of the start.
WRITTEN_AT_START = ("group", "passwd")


def found(program: str, image: Path | str, tops: str = ".envbuild .singularity.d bin etc opt") -> list[str]:
    """Return what processes of an image see."""
    tops = f"ch srv usr {tops}"
    words = ["exec", "--no-home", "--contain"]
    told = subprocess.run(
        [program, "--silent", *words, str(image), "/bin/sh", "-c", f"cd / && exec ls -lAnR {tops}"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = []
    for line in told.stdout.splitlines():
        # Not how long directories are and how many links there are: these count otherwise in each.
        mode, *rest = [*line.split()[:1], *line.split()[2:]] or [""]
        if rest and rest[-1] in WRITTEN_AT_START:
            rest = [*rest[:3], rest[-1]]
        if line and mode != "total":
            lines.append(f"{mode} {rest[-1]}" if mode.startswith("d") and rest else " ".join([mode, *rest]))
    return lines


def test_a_squashfs_is_the_file_system_of_the_image(sample: Sample, room: Path) -> None:
    written = exported(sample.image, "squashfs", room / "demo.squashfs")
    assert written.files == (room / "demo.squashfs",)
    content = written.files[0].read_bytes()
    assert content == file_system_of(sample.image)
    assert written.size_bytes == len(content)
    assert written.identity == "sha256:" + hashlib.sha256(content).hexdigest()
    assert_kernel_accepts(written.files[0])
    shown = list_with_unsquashfs(written.files[0], room / "unpacked")
    assert shown["/usr/bin/set-id"][:2] == ("file", 0o4755)
    assert shown["/etc/replaced"][:2] == ("file", 0o600)
    assert not {"/etc/hidden", "/srv/hidden"} & shown.keys()


def test_shifter_gets_gzip_for_nodes_without_zstd(sample: Sample, room: Path) -> None:
    written = exported(sample.image, "shifter", room / "images")
    image, metadata = written.files
    assert sorted((room / "images").iterdir()) == sorted(written.files)
    assert (image.name, metadata.name) == (f"{written.identity}.squashfs", f"{written.identity}.meta")
    assert written.identity == shifter.image_id(image)
    assert metadata.read_text() == shifter.metadata_text(sample.manifest.environment)
    assert compression(image) == "gzip"
    assert list_with_unsquashfs(image, room / "theirs") == shown_of(sample.image, room / "ours")


def test_shifter_gets_the_file_system_as_it_is_where_it_has_gzip(gzip_image: Path, room: Path) -> None:
    image, _ = exported(gzip_image, "shifter", room / "images").files
    assert image.read_bytes() == file_system_of(gzip_image)


def test_what_was_exported_before_is_replaced(sample: Sample, gzip_image: Path, room: Path) -> None:
    for form in FORMATS:
        first, again = (exported(image, form, room / form) for image in (gzip_image, sample.image))
        assert all(path.exists() for path in again.files)
        assert first.identity != again.identity or form == "oci"
    assert (room / "squashfs").read_bytes() == file_system_of(sample.image)
    # Shifter's files are named after what they hold: both images lie beside each other.
    assert len(list((room / "shifter").iterdir())) == 4


def test_it_is_told_how_far_it_is(gzip_image: Path, room: Path) -> None:
    for form in FORMATS:
        told: list[Event] = []
        export_image(gzip_image, form, room / form, told.append)
        tasks = [(type(event), event.task) for event in told if isinstance(event, TaskStarted | TaskDone)]
        assert tasks == [(kind, task) for task in ("verify", form) for kind in (TaskStarted, TaskDone)]
        for task in ("verify", form):
            counts = [event.bytes for event in told if isinstance(event, TaskAdvanced) and event.task == task]
            assert sum(counts) > 100_000


def test_root_and_user_export_alike(sample: Sample, shared: Path, installed: Path) -> None:
    desks = [make_desk(shared, "exporting", installed)]
    desks.append(make_desk(shared, "exporting too", installed, root=True))
    for desk, umask in zip(desks, (0o077, 0o022), strict=True):
        for form in FORMATS:
            desk.envbuild("export", sample.image, "--format", form, "-o", form, umask=umask)
    names = [path.relative_to(desks[0].place) for path in sorted(desks[0].place.rglob("*")) if path.is_file()]
    assert len(names) == 4
    for name in names:
        assert filecmp.cmp(desks[0].place / name, desks[1].place / name, shallow=False), name


def test_what_is_said(sample: Sample, shared: Path, installed: Path) -> None:
    desk = make_desk(shared, "saying", installed)
    said = desk.envbuild("export", sample.image, "--format", "squashfs", "-o", "x", "--json")
    told = json.loads(said.stdout)
    assert (told["format"], told["files"]) == ("squashfs", ["x"])
    assert told["size_bytes"] == (desk.place / "x").stat().st_size
    assert f"x: written (squashfs, {told['size_bytes'] / 1e6:.1f} MB, sha256:" in said.stderr
    for words in (["--format", "sif-flat"], ["--format", "squashfs", "--compression", "gzip"], []):
        desk.envbuild("export", sample.image, *words, "-o", "y", code=2)
    assert not (desk.place / "y").exists()


@pytest.mark.parametrize(
    ("form", "place", "problem"),
    [
        ("squashfs", "notes", "already exists and is not a squashfs; it was not overwritten"),
        ("oci", "notes", "already exists and is not an oci; it was not overwritten"),
        ("oci", "packed", "already exists and is not an oci; it was not overwritten"),
        ("shifter", "notes", "is not a directory"),
        ("squashfs", "copy.sif", "is an input of this command; it was not overwritten"),
        ("squashfs", "", "is a directory, not a file"),
        ("squashfs", "no/where", "there is no directory"),
        ("shifter", "no/where", "there is no directory"),
    ],
)
def test_places_where_nothing_is_written(
    form: ExportFormat, place: str, problem: str, sample: Sample, room: Path
) -> None:
    contents = {"notes": b"mine\n", "copy.sif": sample.image.read_bytes(), "packed": b"hsqs"}
    for name, content in contents.items():
        (room / name).write_bytes(content)
    told: list[Event] = []
    with pytest.raises(RequestError) as caught:
        export_image(room / "copy.sif", form, room / place, told.append)
    assert problem in caught.value.problem
    assert told == [], "no work was begun"
    assert {path.name: path.read_bytes() for path in room.iterdir()} == contents


def test_a_squashfs_runs(sample: Sample, room: Path, program: str) -> None:
    exported(sample.image, "squashfs", room / "whole")
    assert found(program, room / "whole") == found(program, sample.image)


def test_charliecloud_sets_the_variables_as_they_are(sample: Sample, room: Path) -> None:
    odd = [
        Variable(name="ITEM", operation="set", value="$HOME:x"),
        Variable(name="QUOTED", operation="set", value="'quoted'"),
    ]
    environment = (*sample.manifest.environment, *odd)
    top = room / "top.squashfs"
    squashfs.make(trees.top_tree(room / "top", trees.manifest(environment=environment)), top)
    layers = {**sample.layers, "metadata": top}
    trees.write_image(room / "odd.sif", layers, lock=LOCK, environment=environment)
    exported(room / "odd.sif", "squashfs", room / "whole.sqfs")
    told = subprocess.run(
        ["ch-run", "--env-no-expand", "--set-env", room / "whole.sqfs", "--", "/usr/bin/env"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/host", "USER": users.user_name()},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    got = dict(line.partition("=")[::2] for line in told.stdout.splitlines())
    expected = {"ITEM": "$HOME:x", "QUOTED": "'quoted'", "GREETING": "it's $HOME `here`", "PYTHONPATH": ""}
    assert {name: got.get(name) for name in expected} == expected
    assert got["PATH"].startswith("/opt/env/bin:/opt/mpi/bin:/usr/local/sbin")


def members_of(archive: Path) -> Mapping[str, tuple[object, ...]]:
    """Return path → kind, mode, owner and content or target."""
    kinds = {tarfile.DIRTYPE: "directory", tarfile.REGTYPE: "file", tarfile.SYMTYPE: "link"}
    shown = {}
    with tarfile.open(archive) as tar:
        for one in tar:
            file = tar.extractfile(one) if one.isreg() else None
            content = hashlib.sha256(file.read()).hexdigest() if file else one.linkname
            path = f"/{one.name.strip('/')}"
            shown[path] = (kinds[one.type], one.mode & 0o7777, (one.uid, one.gid), content)
    return shown


def test_podman_reads_an_oci_archive(sample: Sample, room: Path) -> None:
    """It compares every digest, lays the layers over one another by itself, and knows the variables."""
    exported(sample.image, "oci", room / "oci")
    with podman_home() as home:
        check_with_podman(sample, room, home)


def check_with_podman(sample: Sample, room: Path, home: Path) -> None:
    podman(home, "pull", "--quiet", f"oci-archive:{room}/oci")
    (told,) = json.loads(podman(home, "image", "inspect", "localhost/demo:2026.11"))
    assert "PATH=/opt/env/bin:/opt/mpi/bin:/usr/local/sbin" in ";".join(told["Config"]["Env"])
    assert "GREETING=it's $HOME `here`" in told["Config"]["Env"]
    assert told["Labels"]["envbuild.lock"] == sample.manifest.lock_digest
    podman(home, "create", "--name", "one", "localhost/demo:2026.11", "true")
    podman(home, "export", "one", "--output", "one.tar")
    theirs, ours = members_of(home / "one.tar"), shown_of(sample.image, room / "unpacked")
    assert theirs == {
        path: (kind, mode, owner, content)
        for path, (kind, mode, owner, _, content) in ours.items()
        if path != "/"
    }
    podman(home, "unshare", "rm", "-rf", "storage")


def test_apptainer_runs_an_oci_archive(sample: Sample, room: Path, program: str) -> None:
    exported(sample.image, "oci", room / "oci")
    # Start-up files of its own take the place of ours when it makes a SIF of one.
    tops = ".envbuild bin etc opt"
    assert found(program, f"oci-archive:{room}/oci", tops) == found(program, sample.image, tops)


@pytest.mark.parametrize("form", FORMATS)
def test_a_changed_image_is_no_source(form: ExportFormat, sample: Sample, room: Path) -> None:
    copy, system = room / "copy.sif", sample.manifest.file_system
    root = read_sif(sample.image).root
    assert system is not None
    assert root is not None
    content = bytearray(sample.image.read_bytes())
    content[root.offset + system.layers[1].offset + 10] ^= 1
    copy.write_bytes(content)
    with pytest.raises(RequestError, match=r"`copy\.sif` was changed or damaged: layer middle"):
        exported(copy, form, room / "out")
    assert [path.name for path in room.iterdir()] == ["copy.sif"]


def test_variables_that_shifter_misreads(sample: Sample, room: Path) -> None:
    odd = [
        Variable(name="ODD", operation="set", value="C:\\"),
        Variable(name="END", operation="set", value="blank "),
    ]
    environment = (*sample.manifest.environment, *odd)
    trees.write_image(room / "odd.sif", sample.layers, lock=LOCK, environment=environment)
    told: list[Event] = []
    with pytest.raises(EnvbuildError) as error:
        export_image(room / "odd.sif", "shifter", room / "images", told.append)
    assert [one.problem.split(":")[0] for one in error.value.each()] == [
        "Shifter would misread the variable END",
        "Shifter would misread the variable ODD",
    ]
    assert told == [], "no work was begun"
    assert [path.name for path in room.iterdir()] == ["odd.sif"]
    exported(room / "odd.sif", "squashfs", room / "other forms can be had")


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if not path.is_dir() or path.name.startswith(".")]


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_is_told_as_that(form: ExportFormat, gzip_image: Path, room: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    told: list[Event] = []
    try:
        with pytest.raises(MachineError) as caught:
            export_image(gzip_image, form, room / "out", told.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.problem == f"`{room / 'out'}` cannot be written: File too large"
    assert told[-1] == TaskFailed(task=form)
    assert files_in(room) == []


@pytest.mark.parametrize("form", FORMATS)
def test_an_interrupt_leaves_nothing(form: ExportFormat, gzip_image: Path, room: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, TaskAdvanced) and event.task == form:
            assert files_in(room), "it has begun"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_image(gzip_image, form, room / "out", interrupt)
    assert files_in(room) == []


def test_a_signal_stops_what_it_started(sample: Sample, shared: Path, installed: Path) -> None:
    desk = make_desk(shared, "interrupted", installed)
    # One that never ends, so that the moment is known.
    desk.write("bin/mksquashfs", "#!/bin/sh\n> started\nexec sleep 100\n").chmod(0o755)
    words = [str(installed), "export", str(sample.image), "--format", "shifter", "-o", "x"]
    child = subprocess.Popen(
        words,
        cwd=desk.place,
        env={**os.environ, "PATH": f"{desk.place}/bin:{os.environ['PATH']}"},
        stderr=subprocess.DEVNULL,
    )
    while not (desk.place / "started").exists():
        assert child.poll() is None
        time.sleep(0.05)
    child.terminate()
    assert child.wait(timeout=30) == 130
    assert sorted(path.name for path in files_in(desk.place)) == ["mksquashfs", "started"]
