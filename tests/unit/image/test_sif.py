"""SIF files: written alike every time, read without trust."""

import errno
import hashlib
import os
import resource
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.image import sif, sifformat
from envbuild.image.model import Manifest
from envbuild.system.leftovers import own_name
from tests.support import trees
from tests.support.forged_squashfs import directory_inode, forge
from tests.support.images import (
    check_image_is_whole,
    read_data,
    read_manifest,
    read_sif,
    tables_are_right,
    verify_image,
)

# Length of the data of each layer, in bytes.
LAYERS = {"base": 9000, "wheel:mid": 5500, "metadata": 8}
LOCK, PLAN, BILL = b"name: demo\n", b"{}\n", b'{"bomFormat":"CycloneDX"}\n'
ROOT = 32768


@pytest.fixture
def layers(tmp_path: Path) -> dict[str, Path]:
    return make_layers(tmp_path)


def make_layers(directory: Path) -> dict[str, Path]:
    """Write empty file systems with some data, to which nothing in them refers."""
    made = {}
    for name, size in LAYERS.items():
        path = forge(directory / f"{name}.squashfs", directory_inode(1, size=0), 0, b"", begin=96 + size)
        patch(path, 96, (name.encode() * size)[:size])
        made[name] = path
    return made


def write(path: Path, layers: dict[str, Path], **changes: object) -> Manifest:
    fields: dict[str, Any] = {"lock": LOCK, "plan": PLAN, "bill": BILL, **changes}
    return trees.write_image(path, layers, **fields)


@pytest.fixture
def image(tmp_path: Path, layers: dict[str, Path]) -> Path:
    path = tmp_path / "image.sif"
    write(path, layers)
    return path


def patch(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def descriptor_at(number: int) -> int:
    return 4096 + (number - 1) * 585


def test_layout(image: Path) -> None:
    """The whole table, as Apptainer must find it."""
    read = read_sif(image)
    shown = [
        f"{thing.number} {thing.kind:#x} group {thing.group} at {thing.offset} is {thing.name}"
        f" {thing.filesystem}/{thing.partition_type}/{thing.architecture}"
        for thing in read.objects
    ]
    sizes = [thing.size for thing in read.objects]
    system = read_manifest(image).file_system
    assert system is not None
    end = ROOT + system.size_bytes
    at = [end + sum(sizes[:index]) for index in range(7)]
    assert shown == [
        f"1 0x4001 group 1 at {at[0]} is definition 0/0/",
        f"2 0x4006 group 1 at {at[1]} is inspect-metadata.json 0/0/",
        f"3 0x4003 group 1 at {at[2]} is labels 0/0/",
        f"4 0x4006 group 1 at {at[3]} is envbuild.manifest 0/0/",
        f"5 0x4007 group 1 at {at[4]} is envbuild.lock 0/0/",
        f"6 0x4006 group 1 at {at[5]} is envbuild.plan 0/0/",
        f"7 0x4009 group 1 at {at[6]} is sbom.cdx.json 0/0/",
        f"8 0x4004 group 1 at {ROOT} is root 1/2/amd64",
    ]
    assert read.root == read.objects[7]
    assert read.objects[7].padded_size == 592 + system.size_bytes
    assert system.size_bytes % 4096 == 0
    assert image.stat().st_size == read.objects[6].end == read.size_bytes


def test_header_bytes(image: Path) -> None:
    """The header, field by field, against the format's own description."""
    head = image.read_bytes()[:4096]
    assert head[:32] == b"#!/usr/bin/env run-singularity\n\0"
    assert head[32:48] == b"SIF_MAGIC\x0001\x0002\0"
    assert head[48:64] == read_sif(image).identity.bytes
    data_bytes = image.stat().st_size - 32176
    assert struct.unpack("<8q", head[64:128]) == (0, 0, 40, 48, 4096, 28080, 32176, data_bytes)
    assert not any(head[128:])


def test_identity_is_of_version_8_and_follows_the_manifest(
    tmp_path: Path, image: Path, layers: dict[str, Path]
) -> None:
    write(tmp_path / "other.sif", layers, summary="another")
    one, other = read_sif(image).identity, read_sif(tmp_path / "other.sif").identity
    assert one != other
    assert (one.int >> 76 & 0xF, one.int >> 62 & 3) == (8, 2)


def test_same_arguments_same_bytes(tmp_path: Path, image: Path, layers: dict[str, Path]) -> None:
    for path in layers.values():
        os.utime(path, (1, 1))
    umask = os.umask(0o077)
    try:
        (tmp_path / "elsewhere").mkdir()
        write(tmp_path / "elsewhere/b.sif", layers)
    finally:
        os.umask(umask)
    assert (tmp_path / "elsewhere/b.sif").read_bytes() == image.read_bytes()


def test_contents_come_back(tmp_path: Path, image: Path, layers: dict[str, Path]) -> None:
    assert read_manifest(image) == write(tmp_path / "b.sif", layers)
    contents = {name: read_data(image, name) for name in (sif.LOCK, sif.PLAN, sif.SBOM)}
    assert contents == {sif.LOCK: LOCK, sif.PLAN: PLAN, sif.SBOM: BILL}


def test_data_of_layers_are_copied_as_they_are(image: Path, layers: dict[str, Path]) -> None:
    content, system = image.read_bytes(), read_manifest(image).file_system
    assert system is not None
    assert [layer.name for layer in system.layers] == list(LAYERS)
    for layer in system.layers:
        blob = layers[layer.name].read_bytes()
        assert layer.digest == "sha256:" + hashlib.sha256(blob).hexdigest()
        data = blob[96 : 96 + LAYERS[layer.name]]
        assert content[ROOT + layer.offset :][: layer.size_bytes] == data
        assert layer.data == "sha256:" + hashlib.sha256(data).hexdigest()
        assert layer.offset % 4096 == 96


def test_copies_where_the_file_system_cannot(
    tmp_path: Path, image: Path, layers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "no")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    write(tmp_path / "b.sif", layers)
    assert (tmp_path / "b.sif").read_bytes() == image.read_bytes()


def test_verifying_tells_how_far_it_is(image: Path) -> None:
    counts: list[int] = []
    assert verify_image(image, advanced=counts.append) == ()
    assert sum(counts) == sum(LAYERS.values())


class TestVerify:
    @pytest.mark.parametrize("name", LAYERS)
    def test_a_damaged_layer_is_named(self, image: Path, name: str) -> None:
        system = read_manifest(image).file_system
        assert system is not None
        (layer,) = (layer for layer in system.layers if layer.name == name)
        for place in (layer.offset, layer.offset + layer.size_bytes - 1):
            before = image.read_bytes()[ROOT + place]
            patch(image, ROOT + place, bytes([before ^ 1]))
            assert verify_image(image) == (f"layer {name}",)
            assert tables_are_right(image)
            patch(image, ROOT + place, bytes([before]))
        assert verify_image(image) == ()

    def test_damage_outside_of_layers_is_that_of_the_tables(self, image: Path) -> None:
        system = read_manifest(image).file_system
        assert system is not None
        first = system.layers[0]
        places = {
            "superblock": 5,
            "between layers": first.offset + first.size_bytes + 1,
            "tables": system.tables_offset + 3,
            "padding": system.size_bytes - 1,
        }
        for place in places.values():
            before = image.read_bytes()[ROOT + place]
            patch(image, ROOT + place, bytes([before ^ 1]))
            assert verify_image(image) == ("the tables of its file system",)
            assert tables_are_right(image) == (place == places["between layers"])
            patch(image, ROOT + place, bytes([before]))

    def test_a_file_system_of_another_length(self, image: Path) -> None:
        system = read_manifest(image).file_system
        assert system is not None
        patch(image, descriptor_at(8) + 25, struct.pack("<q", system.size_bytes - 4096))
        assert verify_image(image)[0] == "its file system"
        assert not tables_are_right(image)

    def test_a_partition_that_is_not_the_root(self, image: Path) -> None:
        patch(image, descriptor_at(8) + 585 - 384 + 4, struct.pack("<i", 4))
        assert read_sif(image).root is None
        assert verify_image(image)[0] == "its file system"

    def test_a_flipped_bit_around_the_file_system_is_found(self, image: Path) -> None:
        assert verify_image(image) == ()
        read, content = read_sif(image), image.read_bytes()
        data = [thing for thing in read.objects if thing.kind != sifformat.Kind.PARTITION]
        assert [thing.name for thing in data] == list(sif.DATA)
        places = [
            *range(sifformat.HEADER_FIXED_BYTES),
            *range(4096, descriptor_at(len(read.objects) + 1), 2),
            *(place for thing in data for place in range(thing.offset, thing.end, 5)),
        ]
        for bit, place in enumerate(places):
            patch(image, place, bytes([content[place] ^ 1 << bit % 8]))
            assert found(image), f"byte {place}"
            patch(image, place, content[place : place + 1])
        assert verify_image(image) == ()

    def test_what_is_changed_around_the_file_system_is_named(self, image: Path) -> None:
        lock = read_sif(image).find(sif.LOCK)
        assert lock is not None
        patch(image, lock.offset, b"N")
        assert verify_image(image) == ("the lock",)
        patch(image, descriptor_at(3) + 5, b"\7")  # its number
        assert verify_image(image) == ("the table of descriptors", "the lock")
        patch(image, 0, b"#!/bin/sh\n\0")
        header, *others = verify_image(image)
        assert header.startswith("the header, or the data that its identity is made from: manifest")
        assert others == ["the table of descriptors", "the lock"]

    @pytest.mark.parametrize("name", [sif.PLAN, sif.SBOM, "labels"])
    def test_data_that_are_others_are_refused(self, image: Path, name: str) -> None:
        check_image_is_whole(image)
        data = read_sif(image).find(name)
        assert data is not None
        patch(image, data.offset + 1, b"#")
        with pytest.raises(
            RequestError, match=r"`image\.sif` was changed or damaged: the header, or the data"
        ):
            check_image_is_whole(image)

    def test_an_image_without_its_bill_is_not_whole(self, image: Path) -> None:
        bill = read_sif(image).find(sif.SBOM)
        assert bill is not None
        patch(image, descriptor_at(7), sifformat.Descriptor.pack(replace(bill, name="else")))
        assert verify_image(image)

    def test_a_signature_changes_nothing(self, image: Path) -> None:
        add_object(image, sifformat.Kind.SIGNATURE)
        patch(image, sifformat.HEADER_FIXED_BYTES + 8, struct.pack("<q", 1700000000))
        assert verify_image(image) == ()
        add_object(image, sifformat.Kind.SIGNATURE)
        assert verify_image(image) == ()

    @pytest.mark.redteam
    @pytest.mark.parametrize(
        "kind", [kind for kind in sifformat.Kind if kind != sifformat.Kind.SIGNATURE] + [0x400A, 0x5001]
    )
    @pytest.mark.parametrize("signed", [False, True])
    def test_an_object_that_was_added_is_a_change(self, image: Path, kind: int, signed: bool) -> None:
        """Runtimes mount a further partition above the file system: other code runs than was tested."""
        if signed:
            add_object(image, sifformat.Kind.SIGNATURE)
        add_object(image, kind, partition_type=sifformat.PartitionType.OVERLAY)
        assert verify_image(image) == ("objects or bytes that were added",)
        if signed:
            return
        add_object(image, sifformat.Kind.SIGNATURE)
        assert verify_image(image) == ("objects or bytes that were added",)

    @pytest.mark.redteam
    def test_bytes_that_were_added_are_a_change(self, image: Path) -> None:
        whole = image.read_bytes()
        for changed in (
            whole + b"\0",
            whole[: ROOT - 1] + b"x" + whole[ROOT:],  # the padding before the file system
            whole[: descriptor_at(20)] + b"x" + whole[descriptor_at(20) + 1 :],  # unused entries
            whole[: descriptor_at(48)] + b"\4" + whole[descriptor_at(48) + 1 :],
        ):
            image.write_bytes(changed)
            assert verify_image(image) == ("objects or bytes that were added",)
        image.write_bytes(whole)
        add_object(image, sifformat.Kind.SIGNATURE, before=b"hidden")
        assert verify_image(image) == ("objects or bytes that were added",)

    @pytest.mark.redteam
    def test_another_table_of_descriptors_is_a_change(self, image: Path) -> None:
        """A reader follows the header to a table with an overlay; the old one lies where it was."""
        at = image.stat().st_size
        content = image.read_bytes()
        with image.open("ab") as file:
            file.write(content[4096:32176])
        patch(image, sifformat.HEADER_FIXED_BYTES + 32, struct.pack("<q", at))
        header, *others = verify_image(image)
        assert header.startswith("the header")
        assert others == ["objects or bytes that were added"]

    @pytest.mark.redteam
    @pytest.mark.parametrize(("name", "field"), [(sif.NOTE, "note"), (sif.FACTS, "facts")])
    def test_what_only_some_images_have_is_part_of_them(
        self, tmp_path: Path, layers: dict[str, Path], name: str, field: str
    ) -> None:
        path = tmp_path / "extended.sif"
        write(path, layers, **{field: b'{"format": 1}\n'})
        assert verify_image(path) == ()
        added = read_sif(path).find(name)
        assert added is not None
        patch(path, added.offset + 1, b"F")
        assert [text.partition(",")[0] for text in verify_image(path)] == ["the header"]
        # Without it, and in an image that has none.
        patch(path, descriptor_at(9), bytes(585))
        assert verify_image(path)
        plain = tmp_path / "image.sif"
        write(plain, layers)
        add_object(plain, sifformat.Kind.JSON, name=name)
        assert verify_image(plain)

    def test_facts_come_before_the_note(self, tmp_path: Path, layers: dict[str, Path]) -> None:
        path = tmp_path / "both.sif"
        write(path, layers, facts=b'{"format":1,"facts":[]}\n', note=b'{"format": 1}\n')
        assert verify_image(path) == ()
        read = read_sif(path)
        assert [thing.name for thing in read.objects[8:]] == [sif.FACTS, sif.NOTE]
        assert read.objects[9].end == path.stat().st_size


def add_object(
    image: Path, kind: int, *, partition_type: int = 0, before: bytes = b"", name: str = "part-signature"
) -> None:
    """Add an object as `apptainer sif add` and `sign` do, behind some bytes."""
    read = read_sif(image)
    added = sifformat.Descriptor(
        number=len(read.objects) + 1,
        kind=kind,
        link=0xF0000001,
        offset=read.size_bytes + len(before),
        size=7,
        padded_size=7,
        name=name,
        filesystem=sifformat.SQUASHFS,
        partition_type=partition_type,
        architecture="amd64",
    )
    with image.open("ab") as file:
        file.write(before + b"signed\n")
    patch(image, descriptor_at(added.number), added.pack())
    free = sifformat.HEADER_FIXED_BYTES + 16
    (count,) = struct.unpack("<q", image.read_bytes()[free : free + 8])
    patch(image, free, struct.pack("<q", count - 1))


def found(path: Path) -> tuple[str, ...]:
    """Return what is found in an image, or by whoever reads it."""
    try:
        return verify_image(path)
    except RequestError as error:
        return (error.problem,)


def left_behind(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".squashfs")


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, MachineError), (errno.EDQUOT, MachineError)])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path,
    layers: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[EnvbuildError],
) -> None:
    target = tmp_path / "image.sif"
    target.write_text("the one before")

    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(kind) as caught:
        write(target, layers)
    assert caught.value.problem == f"there is no space for `{target}`: {os.strerror(number)}"
    assert target.read_text() == "the one before"
    assert left_behind(tmp_path) == ["image.sif"]


def test_a_file_that_may_not_grow(tmp_path: Path, layers: dict[str, Path]) -> None:
    """The kernel's own refusal, in the middle of a copy."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(MachineError, match=r"there is no space for .*: File too large"):
            write(tmp_path / "image.sif", layers)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left_behind(tmp_path) == []


def test_an_interrupt_leaves_nothing(
    tmp_path: Path, layers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "copy_file_range", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "image.sif", layers)
    assert left_behind(tmp_path) == []


def test_targets_that_cannot_be(tmp_path: Path, layers: dict[str, Path]) -> None:
    (tmp_path / "there").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    cases = {
        tmp_path / "there": f"`{tmp_path}/there` cannot be written: it is a directory",
        tmp_path / "pipe": f"`{tmp_path}/pipe` cannot be written: it is not a regular file",
        Path("/dev/null"): "`/dev/null` cannot be written: it is not a regular file",
        tmp_path / "no/image.sif": f"the directory `{tmp_path}/no` does not exist",
        tmp_path / "file/image.sif": f"the directory `{tmp_path}/file` does not exist",
        Path("/sys/image.sif"): "`/sys/image.sif` cannot be written: Permission denied",
        tmp_path / ("x" * 300): f"`{tmp_path / ('x' * 300)}` cannot be written: File name too long",
    }
    for target, problem in cases.items():
        with pytest.raises(RequestError) as caught:
            write(target, layers)
        assert caught.value.problem == problem
        assert caught.value.hint == "name a file in a directory of yours, with space, with `-o IMAGE.sif`"
    assert left_behind(tmp_path) == ["file", "pipe", "there"]


def test_a_long_name_is_written(tmp_path: Path, layers: dict[str, Path]) -> None:
    target = tmp_path / ("ü" * 120 + ".sif")
    write(target, layers)
    assert left_behind(tmp_path) == [target.name]


def test_what_a_killed_process_left_goes(tmp_path: Path, layers: dict[str, Path]) -> None:
    left = f".image.sif.{own_name()}.partial".replace(f"-{os.getpid()}-", "-99999999-")
    (tmp_path / left).write_text("half")
    write(tmp_path / "image.sif", layers)
    assert left_behind(tmp_path) == ["image.sif"]


def problem_of(path: Path) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as caught:
        read_sif(path)
    return caught.value.problem, caught.value.hint


def test_what_is_no_sif(tmp_path: Path) -> None:
    make = "`envbuild build SPEC -o IMAGE.sif` makes an image"
    contents = {
        b"": f"it is empty; {make}",
        b"\x1f\x8b\x08": f"it is a gzip archive; {make}",
        b"\x7fELF": f"it is a program; {make}",
        b"name: demo\n": make,
        b"\0" * 5000: make,
    }
    path = tmp_path / "IMAGE.sif"
    for content, hint in contents.items():
        path.write_bytes(content)
        assert problem_of(path) == ("`IMAGE.sif` is not a SIF", hint)
    spec = path.rename(tmp_path / "spec.yaml")
    makes = f"of a spec, `envbuild build {spec}` makes the image `{tmp_path}/spec.sif`"
    assert problem_of(spec) == ("`spec.yaml` is not a SIF", makes)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problem_of(tmp_path / "pipe")[0] == "`pipe` is not a regular file"
    assert problem_of(tmp_path)[0] == f"`{tmp_path.name}` is a directory, not a file"
    assert problem_of(tmp_path / "no.sif")[0] == f"there is no image `{tmp_path}/no.sif`"
    (tmp_path / "loop").symlink_to("loop")
    assert problem_of(tmp_path / "loop")[0].startswith(f"`{tmp_path}/loop` cannot be read: ")


def test_cut_short(image: Path) -> None:
    whole = image.read_bytes()
    objects = read_sif(image).objects
    first, last = objects[0].end, objects[6].end
    cuts = {
        len(whole) - 1: f"`image.sif` is cut short: descriptor 7 ends at byte {last} of {last - 1}",
        40_000: f"`image.sif` is cut short: descriptor 1 ends at byte {first} of 40000",
        32_175: "`image.sif` is cut short: its descriptors end at byte 32176 of 32175",
        127: "`image.sif` is cut short: its header ends at byte 128 of 127",
    }
    for length, problem in cuts.items():
        image.write_bytes(whole[:length])
        assert problem_of(image)[0] == problem


def test_a_squashfs_has_no_manifest(tmp_path: Path) -> None:
    path = tmp_path / "image.sqfs"
    path.write_bytes(b"hsqs....")
    with pytest.raises(RequestError, match="is a squashfs that envbuild did not build"):
        read_manifest(path)


def test_hostile_tables(image: Path) -> None:
    whole = image.read_bytes()
    manifest = read_sif(image).objects[3]
    q = struct.Struct("<q")
    no, cut = "`image.sif` is not a valid SIF:", "`image.sif` is cut short:"
    at, end = manifest.offset, len(whole)
    changes = {
        (88, q.pack(2**62)): f"{no} it says that it has {2**62} descriptors",
        (88, q.pack(-1)): f"{no} it says that it has -1 descriptors",
        (96, q.pack(-5)): f"{no} its descriptors begin at byte -5",
        (96, q.pack(2**62)): f"{cut} its descriptors end at byte {2**62 + 28080} of {end}",
        (descriptor_at(4) + 17, q.pack(-1)): (
            f"{no} descriptor 4 begins at byte -1 and has {manifest.size} bytes"
        ),
        (descriptor_at(4) + 25, q.pack(-7)): f"{no} descriptor 4 begins at byte {at} and has -7 bytes",
        (descriptor_at(4) + 25, q.pack(2**63 - 1)): (
            f"{cut} descriptor 4 ends at byte {at + 2**63 - 1} of {end}"
        ),
        (42, b"07\0"): (
            "`image.sif` is not a SIF that this version can read: its format version is 07, not 01"
        ),
    }
    for (offset, content), problem in changes.items():
        image.write_bytes(whole)
        patch(image, offset, content)
        assert problem_of(image)[0] == problem


def test_a_huge_data_object_is_not_read(image: Path) -> None:
    size = 65 * 1024 * 1024
    with image.open("r+b") as file:
        file.truncate(100 * 1024 * 1024)
    patch(image, descriptor_at(4) + 25, struct.pack("<q", size))
    with pytest.raises(RequestError) as caught:
        read_manifest(image)
    problem = f"`image.sif` says that its `envbuild.manifest` has {size} bytes, which is too much"
    assert caught.value.problem == problem


def test_a_foreign_sif(image: Path) -> None:
    patch(image, descriptor_at(4) + 585 - 384 - 128, b"something.else\0\0\0")
    assert read_sif(image).root is not None
    for read in (read_manifest, verify_image, lambda path: read_data(path, sif.LOCK)):
        with pytest.raises(RequestError) as caught:
            read(image)
        assert caught.value.problem == "`image.sif` is a SIF that envbuild did not build"


def test_data_that_is_not_there(image: Path) -> None:
    with pytest.raises(RequestError, match=r"`image\.sif` holds no `envbuild.sbom`"):
        read_data(image, "envbuild.sbom")
    with pytest.raises(RequestError, match="holds something else than data under the name `root`"):
        read_data(image, "root")


def test_another_architecture_is_read(tmp_path: Path, layers: dict[str, Path], image: Path) -> None:
    write(tmp_path / "arm.sif", layers, architecture="arm64")
    read = read_sif(tmp_path / "arm.sif")
    assert read.root is not None
    assert (read.architecture, read.root.architecture) == ("arm64", "arm64")
    patch(image, 45, b"77\0")
    assert read_sif(image).architecture == "unknown"


def test_names_are_safe_to_show(image: Path) -> None:
    patch(image, descriptor_at(5) + 585 - 384 - 128, b"\x1b[31m\xffred\0\0\0\0\0\0")
    assert read_sif(image).objects[4].name == "\ufffd[31m\ufffdred"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    directory = tmp_path_factory.mktemp("sample")
    write(directory / "image.sif", make_layers(directory))
    return directory / "mutant.sif", (directory / "image.sif").read_bytes()


# The tables, where mistakes matter most, and the data behind them.
places = st.one_of(st.integers(0, 127), st.integers(4096, 4096 + 585 * 8), st.integers(32_176, 45_000))
edits = st.lists(st.tuples(places, st.binary(min_size=1, max_size=9)), max_size=6)


@settings(
    max_examples=4 * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=edits, keep=st.one_of(st.none(), st.integers(0, 50_000)))
def test_any_file_is_read_or_refused(
    sample: tuple[Path, bytes], changes: list[tuple[int, bytes]], keep: int | None
) -> None:
    """Whatever is done to a file, reading ends in a value or in an error for people."""
    path, whole = sample
    content = bytearray(whole)
    for offset, bytes_ in changes:
        content[offset : offset + len(bytes_)] = bytes_
    path.write_bytes(content[:keep])
    for read in (read_sif, read_manifest, verify_image):
        try:
            read(path)
        except EnvbuildError as error:
            assert error.problem  # noqa: PT017
