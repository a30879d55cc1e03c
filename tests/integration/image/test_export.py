"""An image in other forms: what overlayfs shows, the same bytes for everybody, nothing by halves."""

from __future__ import annotations

import filecmp
import json
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.build import merge
from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Event, TaskStarted, Warned
from envbuild.image import sif
from envbuild.image.model import STORY, Manifest, Variable
from envbuild.image.outputs import Output
from envbuild.image.sif import read_manifest
from envbuild.image.sifwriter import write_sif
from envbuild.system import squashfs
from envbuild.workflows.export import export_image
from tests.integration.conftest import make_desk
from tests.integration.image.conftest import LOCK, Images, part
from tests.integration.image.test_merge import modes
from tests.integration.image.test_squashfs import room
from tests.support import trees, users

__all__ = ["room"]


def written(path: Path, manifest: Manifest, blobs: Sequence[Path]) -> Path:
    """Write an image with all that travels in one; lock, plan and bill of materials are nobody's."""
    data = [
        sif.DataObject(name=sif.LOCK, content=LOCK),
        sif.DataObject(name=sif.PLAN, content=b"{}\n", kind="json"),
        sif.DataObject(name=sif.SBOM, content=b'{"bomFormat":"CycloneDX"}\n', kind="sbom"),
    ]
    parts = list(zip(manifest.parts, blobs, strict=True))
    write_sif(path, architecture="amd64", manifest=manifest, parts=parts, data=data)
    return path


@pytest.fixture(scope="module")
def images(images: Images) -> Iterator[Images]:
    with users.shared_directory() as directory:
        layered = written(directory / "layered.sif", images.manifest, images.layers)
        whole = images.directory / "flat.squashfs"
        flat = written(directory / "flat.sif", sif.read_manifest(images.flat), [whole])
        yield replace(images, layered=layered, flat=flat)


def outputs(directory: Path, *formats: str) -> list[Output]:
    return [Output(format=name, path=directory / name) for name in formats]


def found(program: str, image: Path | str, tops: str = ".envbuild .singularity.d bin etc opt") -> list[str]:
    """Return what processes of an image see, as Apptainer lays its layers over one another."""
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
        if line and mode != "total" and not line.endswith("manifest.json"):
            lines.append(f"{mode} {rest[-1]}" if mode.startswith("d") and rest else " ".join([mode, *rest]))
    return lines


def test_all_forms_at_once_from_one_merge(images: Images, room: Path) -> None:
    told: list[Event] = []
    wanted = outputs(room, "squashfs", "shifter", "sif-flat")
    forms = export_image(images.layered, wanted, told.append)
    tasks = [event.task for event in told if isinstance(event, TaskStarted)]
    assert tasks == ["verify", "merge", "zstd", "gzip"]
    whole, shifter, flat = forms
    assert whole.files == (room / "squashfs",)
    assert shifter.files == tuple(
        room / "shifter" / f"{shifter.identity}.{end}" for end in ("squashfs", "meta")
    )
    assert sorted(path.name for path in room.iterdir()) == ["shifter", "sif-flat", "squashfs"]
    # What differs between layers and one file system is what the image says of itself.
    files = modes(room / "squashfs")
    assert files == modes(images.directory / "flat.squashfs") | {f"{STORY}/manifest.json": "-rw-r--r--"}
    assert files["/usr/bin/set-id"] == "-rwsr-xr-x"
    assert "/etc/hidden" not in files
    assert modes(shifter.files[0]) == files
    manifest = read_manifest(room / "sif-flat")
    assert (manifest.form, flat.identity) == ("flat", manifest.digest)
    assert manifest.parts[0].digest == whole.identity
    inner = subprocess.run(
        ["unsquashfs", "-cat", room / "squashfs", f"{STORY}/manifest.json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(inner.stdout)["form"] == "flat"
    kinds = [compression(path) for path in (room / "squashfs", shifter.files[0])]
    assert kinds == ["zstd", "gzip"]


def compression(path: Path) -> str:
    told = subprocess.run(["unsquashfs", "-s", path], capture_output=True, text=True, check=True)
    return next(
        line.removeprefix("Compression ") for line in told.stdout.splitlines() if "Compression" in line
    )


def test_a_flat_image_exports_to_the_same_bytes_as_a_layered_one(images: Images, room: Path) -> None:
    for name, image in (("layered", images.layered), ("flat", images.flat)):
        (room / name).mkdir()
        export_image(image, outputs(room / name, "squashfs", "sif-flat"), lambda _: None, compression="gzip")
    for form in ("squashfs", "sif-flat"):
        assert filecmp.cmp(room / "layered" / form, room / "flat" / form, shallow=False), form
    assert compression(room / "flat/squashfs") == "gzip"


def test_root_and_user_export_alike(images: Images, shared: Path, installed: Path) -> None:
    desks = [make_desk(shared, "exporting", installed)]
    desks.append(make_desk(shared, "exporting too", installed, root=True))
    formats = {"squashfs": "one", "shifter": "images", "sif-flat": "flat.sif", "oci": "image.oci"}
    for desk, umask in zip(desks, (0o077, 0o022), strict=True):
        for form, place in formats.items():
            words = ["--format", form, "-o", place]
            desk.envbuild("export", images.layered, *words, umask=umask)
    names = [path.relative_to(desks[0].place) for path in sorted(desks[0].place.rglob("*")) if path.is_file()]
    assert len(names) == 5
    for name in names:
        assert filecmp.cmp(desks[0].place / name, desks[1].place / name, shallow=False), name


def test_what_is_said(images: Images, shared: Path, installed: Path) -> None:
    desk = make_desk(shared, "saying", installed)
    said = desk.envbuild("export", images.layered, "--format", "squashfs", "-o", "x", "--json")
    (told,) = json.loads(said.stdout)["outputs"]
    assert told["files"] == ["x"]
    assert told["size_bytes"] == (desk.place / "x").stat().st_size
    (desk.place / "notes").write_text("mine\n")
    for form, place in (("squashfs", "notes"), ("shifter", "notes"), ("sif-flat", "no/where")):
        refused = desk.envbuild("export", images.layered, "--format", form, "-o", place, code=2)
        assert refused.stderr.startswith("error: "), refused.stderr
        assert "read " not in refused.stderr, "no work was begun"
    assert (desk.place / "notes").read_text() == "mine\n"
    words: list[str | Path] = [
        "export",
        images.layered,
        "--format",
        "oci",
        "-o",
        "y",
        "--compression",
        "gzip",
    ]
    refused = desk.envbuild(*words, code=2)
    assert refused.stderr.startswith("error: the form oci has no squashfs to compress by gzip\n")


def test_a_squashfs_and_a_flat_sif_run(images: Images, room: Path, program: str) -> None:
    export_image(images.layered, outputs(room, "squashfs", "sif-flat"), lambda _: None)
    expected = found(program, images.layered)
    assert found(program, room / "sif-flat") == expected
    assert found(program, room / "squashfs") == expected


def by_the_kernel(layers: list[Path], room: Path) -> set[str]:
    """Return kind and path of all that overlayfs itself shows of layers."""
    mine = room / "mine"
    mine.mkdir()
    lines = [f"cd {mine} && mkdir whole {' '.join(str(number) for number in range(len(layers)))}"]
    lines += [f"squashfuse {layer} {number}" for number, layer in enumerate(layers)]
    order = ":".join(str(number) for number in reversed(range(len(layers))))
    lines += [f"mount -t overlay overlay -o userxattr,lowerdir={order} whole"]
    lines += ["find whole -mindepth 1 -printf '%y /%P\\n'", "umount whole"]
    lines += [f"umount {number}" for number in range(len(layers))]
    words = ["unshare", "--map-root-user", "--mount", "sh", "-ec", "\n".join(lines)]
    told = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [re.sub("^f ", "- ", line) for line in told.stdout.splitlines()]
    return {line for line in lines if not line.endswith("manifest.json")}


def foreign_layer(room: Path) -> Path:
    """Make a layer as others make them: opaque directories, hard links, capabilities."""
    tree = room / "foreign"
    tree.mkdir(mode=0o755)
    trees.write(
        tree,
        {
            "/opt/env/lib/only": ("over an opaque directory\n", 0o644),
            "/srv/one": ("linked\n", 0o640),
            "/usr/bin/able": ("x\n", 0o755),
        },
    )
    os.setxattr(tree / "opt/env/lib", "user.overlay.opaque", b"y")
    os.setxattr(tree / "usr/bin/able", "user.note", b"left out")
    for name in ("two", "three"):
        (tree / "srv" / name).hardlink_to(tree / "srv/one")
    layer = room / "foreign.squashfs"
    subprocess.run(
        ["mksquashfs", tree, layer, "-quiet", "-no-progress", "-all-root", "-all-time", "0"], check=True
    )
    return layer


def test_layers_of_others_merge_as_overlayfs_shows_them(images: Images, room: Path) -> None:
    foreign = foreign_layer(room)
    (room / "over/srv").mkdir(parents=True)
    (room / "over/srv/one").write_text("another\n")
    over = room / "over.squashfs"
    squashfs.make(room / "over", over, pseudo=[squashfs.whiteout("/srv/three")])
    blobs = [*images.layers, foreign, over]
    parts = [part("overlay" if at else "root", f"l{at}", blob=blob) for at, blob in enumerate(blobs)]
    image = written(room / "five.sif", trees.manifest_of(LOCK, parts), blobs)
    told: list[Event] = []
    export_image(image, outputs(room, "squashfs"), told.append)
    shown = modes(room / "squashfs")
    assert [path for path in shown if path.startswith(("/srv/", "/opt/env/lib/"))] == [
        "/opt/env/lib/only",
        "/srv/one",
        "/srv/two",
    ]
    contents = subprocess.run(
        ["unsquashfs", "-cat", room / "squashfs", "srv/one", "srv/two"], capture_output=True, text=True
    )
    assert contents.stdout == "another\nlinked\n", "a link outlives its first name"
    assert shown["/srv/two"] == "-rw-r-----"
    warned = [event.text for event in told if isinstance(event, Warned)]
    assert warned == ["extended attributes are left out: user.note of /usr/bin/able (1 in all)"]
    merged = {f"{mode[0]} {path.partition(' -> ')[0]}" for path, mode in shown.items() if path}
    assert {line for line in merged if not line.endswith("manifest.json")} == by_the_kernel(blobs, room)


def test_charliecloud_sets_the_variables_as_they_are(images: Images, room: Path) -> None:
    odd = [
        Variable(name="ITEM", operation="set", value="$HOME:x"),
        Variable(name="QUOTED", operation="set", value="'quoted'"),
    ]
    manifest = trees.manifest(environment=(*images.manifest.environment, *odd))
    squashfs.make(trees.top_tree(room / "top", manifest), room / "top.squashfs")
    merge.merge([*images.layers[:2], room / "top.squashfs"], room / "whole.sqfs", with_root=True)
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


def podman(home: Path, *words: str | Path) -> str:
    """Run podman with its storage below a directory of the test's."""
    own: list[str | Path] = ["--root", home / "storage", "--runroot", home / "run", "--storage-driver", "vfs"]
    own += ["--log-level", "error", "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    # The home directory may hold settings for another storage.
    env = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(home), "HOME": str(home)}
    argv = ["podman", *own, *words]
    done = subprocess.run(argv, env=env, cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_podman_reads_an_oci_archive(images: Images, room: Path) -> None:
    """It compares every digest, lays the layers over one another by itself, and knows the variables."""
    export_image(images.layered, outputs(room, "oci"), lambda _: None)
    home = room / "home"
    home.mkdir()
    podman(home, "pull", "--quiet", f"oci-archive:{room}/oci")
    (told,) = json.loads(podman(home, "image", "inspect", "localhost/demo:2026.11"))
    assert "PATH=/opt/env/bin:/opt/mpi/bin:/usr/local/sbin" in ";".join(told["Config"]["Env"])
    assert "GREETING=it's $HOME `here`" in told["Config"]["Env"]
    assert told["Labels"]["envbuild.lock"] == images.manifest.lock_digest
    podman(home, "create", "--name", "one", "localhost/demo:2026.11", "true")
    podman(home, "export", "one", "--output", "one.tar")
    with tarfile.open(home / "one.tar") as tar:
        theirs = {f"/{member.name.strip('/')}": member for member in tar}
    ours = {path.partition(" -> ")[0] for path in modes(images.directory / "flat.squashfs") if path}
    assert theirs.keys() == ours
    assert theirs["/usr/bin/set-id"].mode & 0o7777 == 0o4755
    assert theirs["/opt/env/lib64"].linkname == "lib"
    podman(home, "unshare", "rm", "-rf", "storage")


def test_apptainer_runs_an_oci_archive(images: Images, room: Path, program: str) -> None:
    export_image(images.layered, outputs(room, "oci"), lambda _: None)
    # Start-up files of its own take the place of ours when it makes a SIF of one.
    tops = ".envbuild bin etc opt"
    assert found(program, f"oci-archive:{room}/oci", tops) == found(program, images.layered, tops)


def test_a_hard_link_whose_first_name_is_hidden_in_a_merge(room: Path) -> None:
    foreign = foreign_layer(room)
    (room / "hide/srv").mkdir(parents=True)
    hide = room / "hide.squashfs"
    squashfs.make(room / "hide", hide, pseudo=[squashfs.whiteout("/srv/one")])
    merge.merge([foreign, hide], room / "all.squashfs", with_root=True)
    told = subprocess.run(
        ["unsquashfs", "-cat", room / "all.squashfs", "srv/two", "srv/three", "opt/env/lib/only"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "linked\nlinked\nover an opaque directory\n"
    assert "/srv/one" not in modes(room / "all.squashfs")


def test_shifter_by_zstd_is_warned_of(images: Images, room: Path) -> None:
    told: list[Event] = []
    (made,) = export_image(images.flat, outputs(room, "shifter"), told.append, compression="zstd")
    assert compression(made.files[0]) == "zstd"
    assert "may lack zstd" in "".join(event.text for event in told if isinstance(event, Warned))


def test_a_changed_image_is_no_source(images: Images, room: Path) -> None:
    copy = room / "copy.sif"
    content = bytearray(images.layered.read_bytes())
    content[sif.read_sif(images.layered).partitions[1].offset + 200] ^= 1
    copy.write_bytes(content)
    with pytest.raises(RequestError, match=r"`copy\.sif` does not hold what was built: middle"):
        export_image(copy, outputs(room, "squashfs", "shifter"), lambda _: None)
    assert [path.name for path in room.iterdir()] == ["copy.sif"]


def test_forms_that_an_image_cannot_take(images: Images, room: Path) -> None:
    mistaken = trees.manifest_of(
        LOCK,
        images.manifest.parts,
        environment=(
            *images.manifest.environment,
            Variable(name="ODD", operation="set", value="C:\\"),
            Variable(name="END", operation="set", value="blank "),
        ),
    )
    image = written(room / "odd.sif", mistaken, images.layers)
    told: list[Event] = []
    with pytest.raises(EnvbuildError) as error:
        export_image(image, outputs(room, "shifter"), told.append)
    assert [one.problem.split(":")[0] for one in error.value.each()] == [
        "Shifter would misread the variable END",
        "Shifter would misread the variable ODD",
    ]
    assert told == [], "no work was begun"
    assert [path.name for path in room.iterdir()] == ["odd.sif"]


def test_an_interrupt_leaves_nothing(images: Images, shared: Path, installed: Path) -> None:
    desk = make_desk(shared, "interrupted", installed)
    # One that never ends, so that the moment is known.
    desk.write("bin/mksquashfs", "#!/bin/sh\n> started\nexec sleep 100\n").chmod(0o755)
    words = [str(installed), "export", str(images.layered), "--format", "squashfs", "-o", "x"]
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
    assert sorted(path.name for path in desk.place.iterdir()) == ["bin", "started"]
