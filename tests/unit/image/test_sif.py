"""SIF files: written alike every time, read without trust."""

import errno
import hashlib
import os
import resource
import struct
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.image import around, sif, sifformat, sifwriter
from envbuild.image.model import Manifest, Part
from envbuild.system.leftovers import own_name
from tests.support import trees

BLOBS = {"root": b"hsqs root" * 1000, "mid": b"hsqs middle" * 500, "top": b"hsqs top"}
DATA = [
    sif.DataObject(name=sif.LOCK, content=b"name: demo\n"),
    sif.DataObject(name=sif.PLAN, content=b"{}\n", kind="json"),
]


@pytest.fixture
def parts(tmp_path: Path) -> list[tuple[Part, Path]]:
    made = []
    for name, content in BLOBS.items():
        path = tmp_path / f"{name}.squashfs"
        path.write_bytes(content)
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        role: Literal["root", "overlay"] = "root" if name == "root" else "overlay"
        made.append((Part(role=role, layers=(name,), digest=digest, size_bytes=len(content)), path))
    return made


def write(path: Path, parts: list[tuple[Part, Path]], **changes: object) -> Manifest:
    manifest = trees.manifest([part for part, _ in parts], **changes)
    sif.write_sif(path, architecture="amd64", manifest=manifest, parts=parts, data=DATA)
    return manifest


@pytest.fixture
def image(tmp_path: Path, parts: list[tuple[Part, Path]]) -> Path:
    path = tmp_path / "image.sif"
    write(path, parts)
    return path


def patch(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def descriptor_at(number: int) -> int:
    return 4096 + (number - 1) * 585


def test_layout(image: Path) -> None:
    """The whole table, as Apptainer must find it."""
    read = sif.read_sif(image)
    shown = [
        f"{thing.number} {thing.kind:#x} group {thing.group} at {thing.offset} is {thing.name}"
        f" {thing.filesystem}/{thing.partition_type}/{thing.architecture}"
        for thing in read.objects
    ]
    sizes = [thing.size for thing in read.objects]
    root = 32768
    end = root + 12288 + 8192 + 8
    at = [end + sum(sizes[:index]) for index in range(6)]
    assert shown == [
        f"1 0x4001 group 1 at {at[0]} is definition 0/0/",
        f"2 0x4006 group 1 at {at[1]} is inspect-metadata.json 0/0/",
        f"3 0x4003 group 1 at {at[2]} is labels 0/0/",
        f"4 0x4006 group 1 at {at[3]} is envbuild.manifest 0/0/",
        f"5 0x4007 group 1 at {at[4]} is envbuild.lock 0/0/",
        f"6 0x4006 group 1 at {at[5]} is envbuild.plan 0/0/",
        f"7 0x4004 group 1 at {root} is root 1/2/amd64",
        f"8 0x4004 group 1 at {root + 12288} is mid 1/4/amd64",
        f"9 0x4004 group 1 at {root + 12288 + 8192} is top 1/4/amd64",
    ]
    assert [thing.padded_size for thing in read.objects[6:]] == [592 + 9000, 3288 + 5500, 2692 + 8]
    assert image.stat().st_size == read.objects[5].end == read.size_bytes


def test_header_bytes(image: Path) -> None:
    """The header, field by field, against the format's own description."""
    head = image.read_bytes()[:4096]
    assert head[:32] == b"#!/usr/bin/env run-singularity\n\0"
    assert head[32:48] == b"SIF_MAGIC\x0001\x0002\0"
    assert head[48:64] == sif.read_sif(image).identity.bytes
    data_bytes = image.stat().st_size - 32176
    assert struct.unpack("<8q", head[64:128]) == (0, 0, 39, 48, 4096, 28080, 32176, data_bytes)
    assert not any(head[128:])


def test_identity_is_of_version_8_and_follows_the_manifest(tmp_path: Path, image: Path, parts: list) -> None:  # type: ignore[type-arg]
    write(tmp_path / "other.sif", parts, summary="another")
    one, other = sif.read_sif(image).identity, sif.read_sif(tmp_path / "other.sif").identity
    assert one != other
    assert (one.int >> 76 & 0xF, one.int >> 62 & 3) == (8, 2)


def test_same_arguments_same_bytes(tmp_path: Path, image: Path, parts: list[tuple[Part, Path]]) -> None:
    for _, path in parts:
        os.utime(path, (1, 1))
    umask = os.umask(0o077)
    try:
        (tmp_path / "elsewhere").mkdir()
        write(tmp_path / "elsewhere/b.sif", parts)
    finally:
        os.umask(umask)
    assert (tmp_path / "elsewhere/b.sif").read_bytes() == image.read_bytes()


def test_contents_come_back(image: Path, parts: list[tuple[Part, Path]]) -> None:
    manifest = trees.manifest([part for part, _ in parts])
    assert sif.read_manifest(image) == manifest
    assert sif.read_data(image, sif.LOCK) == b"name: demo\n"
    assert sif.read_data(image, sif.PLAN) == b"{}\n"
    content = image.read_bytes()
    held = [content[part.offset : part.end] for part in sif.read_sif(image).partitions]
    assert held == list(BLOBS.values())


def test_copies_where_the_file_system_cannot(
    tmp_path: Path, image: Path, parts: list[tuple[Part, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "no")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    write(tmp_path / "b.sif", parts)
    assert (tmp_path / "b.sif").read_bytes() == image.read_bytes()


def test_tells_how_far_it_is(tmp_path: Path, parts: list[tuple[Part, Path]]) -> None:
    counts: list[int] = []
    manifest = trees.manifest([part for part, _ in parts])
    sif.write_sif(
        tmp_path / "i.sif",
        architecture="amd64",
        manifest=manifest,
        parts=parts,
        data=[],
        advanced=counts.append,
    )
    assert sum(counts) == 9000 + 5500 + 8
    counts.clear()
    assert all(verdict.ok for verdict in sif.verify_parts(tmp_path / "i.sif", advanced=counts.append))
    assert sum(counts) == 9000 + 5500 + 8


def test_verify_names_the_damaged_part(image: Path) -> None:
    assert [verdict.ok for verdict in sif.verify_parts(image)] == [True, True, True]
    middle = sif.read_sif(image).partitions[1]
    patch(image, middle.end - 1, b"!")
    verdicts = sif.verify_parts(image)
    assert [(verdict.layers, verdict.ok) for verdict in verdicts] == [
        (("root",), True),
        (("mid",), False),
        (("top",), True),
    ]
    assert verdicts[1].observed.startswith("sha256:")


def test_verify_names_missing_and_added_parts(image: Path) -> None:
    # The top overlay's descriptor is taken out of use: Apptainer would start without it.
    patch(image, descriptor_at(9) + 4, b"\0")
    verdicts = sif.verify_parts(image)
    assert [verdict.ok for verdict in verdicts] == [True, True, False]
    assert verdicts[2].observed == "absent"


def test_verify_names_an_overlay_that_nobody_promised(tmp_path: Path, parts: list[tuple[Part, Path]]) -> None:
    path = tmp_path / "image.sif"
    write(path, parts)
    table = sif.read_sif(path)
    extra = sifformat.Descriptor(
        number=10,
        kind=sifformat.Kind.PARTITION,
        offset=table.partitions[2].offset,
        size=table.partitions[2].size,
        padded_size=table.partitions[2].size,
        name="evil",
        filesystem=1,
        partition_type=sifformat.PartitionType.OVERLAY,
        architecture="amd64",
    )
    patch(path, descriptor_at(10), extra.pack())
    last = sif.verify_parts(path)[-1]
    assert (last.role, last.layers, last.expected, last.ok) == ("overlay", (), "absent", False)


def test_swapped_roles_do_not_pass(image: Path) -> None:
    # Root and overlay trade places: both byte ranges are intact.
    extra = descriptor_at(7) + 585 - 384
    patch(image, extra + 4, struct.pack("<i", 4))
    patch(image, descriptor_at(8) + 585 - 384 + 4, struct.pack("<i", 2))
    assert [verdict.ok for verdict in sif.verify_parts(image)] == [False, False, True]


def test_arguments_that_contradict_each_other(tmp_path: Path, parts: list[tuple[Part, Path]]) -> None:
    manifest = trees.manifest([part for part, _ in parts])
    target = tmp_path / "i.sif"
    with pytest.raises(ValueError, match="another architecture"):
        sif.write_sif(target, architecture="arm64", manifest=manifest, parts=parts, data=[])
    with pytest.raises(ValueError, match="names other parts"):
        sif.write_sif(target, architecture="amd64", manifest=manifest, parts=parts[:2], data=[])
    with pytest.raises(ValueError, match="share a name"):
        sif.write_sif(target, architecture="amd64", manifest=manifest, parts=parts, data=DATA + DATA)
    many = [sif.DataObject(name=f"d{index}", content=b"") for index in range(48)]
    with pytest.raises(ValueError, match="do not fit"):
        sif.write_sif(target, architecture="amd64", manifest=manifest, parts=parts, data=many)
    assert not target.exists()


def left_behind(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".squashfs")


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, MachineError), (errno.EDQUOT, MachineError)])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path,
    parts: list[tuple[Part, Path]],
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
        write(target, parts)
    assert caught.value.problem == f"there is no space for `{target}`: {os.strerror(number)}"
    assert target.read_text() == "the one before"
    assert left_behind(tmp_path) == ["image.sif"]


def test_a_file_that_may_not_grow(tmp_path: Path, parts: list[tuple[Part, Path]]) -> None:
    """The kernel's own refusal, in the middle of a copy."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(MachineError, match=r"there is no space for .*: File too large"):
            write(tmp_path / "image.sif", parts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left_behind(tmp_path) == []


def test_an_interrupt_leaves_nothing(
    tmp_path: Path, parts: list[tuple[Part, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "copy_file_range", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "image.sif", parts)
    assert left_behind(tmp_path) == []


def test_a_changed_layer_is_noticed(tmp_path: Path, parts: list[tuple[Part, Path]]) -> None:
    parts[1][1].write_bytes(b"hsqs shorter")
    with pytest.raises(MachineError, match="is not the squashfs of 5500 bytes that it was"):
        write(tmp_path / "image.sif", parts)
    parts[1][1].write_bytes(b"garbage".ljust(5500))
    with pytest.raises(MachineError, match="is not the squashfs of 5500 bytes that it was"):
        write(tmp_path / "image.sif", parts)
    parts[1][1].unlink()
    with pytest.raises(MachineError, match="cannot be read: No such file or directory"):
        write(tmp_path / "image.sif", parts)
    assert left_behind(tmp_path) == []


def test_targets_that_cannot_be(tmp_path: Path, parts: list[tuple[Part, Path]]) -> None:
    (tmp_path / "there").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    cases = {
        tmp_path / "there": f"`{tmp_path}/there` is a directory",
        tmp_path / "pipe": f"`{tmp_path}/pipe` is not a regular file",
        Path("/dev/null"): "`/dev/null` is not a regular file",
        tmp_path / "no/image.sif": f"the directory `{tmp_path}/no` does not exist",
        tmp_path / "file/image.sif": f"the directory `{tmp_path}/file` does not exist",
        Path("/sys/image.sif"): "`/sys/image.sif` cannot be written: Permission denied",
        tmp_path / ("x" * 300): f"`{tmp_path / ('x' * 300)}` cannot be written: File name too long",
    }
    for target, problem in cases.items():
        with pytest.raises(RequestError) as caught:
            write(target, parts)
        assert caught.value.problem == problem
        assert caught.value.hint == "name a file in a directory of yours, with space, with `-o IMAGE.sif`"
    assert left_behind(tmp_path) == ["file", "pipe", "there"]


def test_a_long_name_is_written(tmp_path: Path, parts: list[tuple[Part, Path]]) -> None:
    target = tmp_path / ("ü" * 120 + ".sif")
    write(target, parts)
    assert left_behind(tmp_path) == [target.name]


def test_what_a_killed_process_left_goes(tmp_path: Path, parts: list[tuple[Part, Path]]) -> None:
    left = f".image.sif.{own_name()}.partial".replace(f"-{os.getpid()}-", "-99999999-")
    (tmp_path / left).write_text("half")
    write(tmp_path / "image.sif", parts)
    assert left_behind(tmp_path) == ["image.sif"]


def problem_of(path: Path) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as caught:
        sif.read_sif(path)
    return caught.value.problem, caught.value.hint


def test_what_is_no_sif(tmp_path: Path) -> None:
    make = "`envbuild build SPEC -o IMAGE.sif` makes an image"
    contents = {
        b"": f"it is empty; {make}",
        b"hsqs....": f"it is a squashfs without the rest of an image; {make}",
        b"\x1f\x8b\x08": f"it is a gzip archive; {make}",
        b"\x7fELF": f"it is a program; {make}",
        b"name: demo\n": make,
        b"\0" * 5000: make,
    }
    path = tmp_path / "IMAGE.sif"
    for content, hint in contents.items():
        path.write_bytes(content)
        assert problem_of(path) == ("`IMAGE.sif` is not a SIF", hint)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problem_of(tmp_path / "pipe")[0] == "`pipe` is not a regular file"
    assert problem_of(tmp_path)[0] == f"`{tmp_path.name}` is a directory, not a SIF"
    assert problem_of(tmp_path / "no.sif")[0] == f"there is no image `{tmp_path}/no.sif`"
    (tmp_path / "loop").symlink_to("loop")
    assert problem_of(tmp_path / "loop")[0].startswith(f"`{tmp_path}/loop` cannot be read: ")


def test_cut_short(image: Path) -> None:
    whole = image.read_bytes()
    objects = sif.read_sif(image).objects
    first, last = objects[0].end, objects[5].end
    cuts = {
        len(whole) - 1: f"`image.sif` is cut short: descriptor 6 ends at byte {last} of {last - 1}",
        40_000: f"`image.sif` is cut short: descriptor 1 ends at byte {first} of 40000",
        32_175: "`image.sif` is cut short: its descriptors end at byte 32176 of 32175",
        127: "`image.sif` is cut short: its header ends at byte 128 of 127",
    }
    for length, problem in cuts.items():
        image.write_bytes(whole[:length])
        assert problem_of(image)[0] == problem


def test_hostile_tables(image: Path) -> None:
    whole = image.read_bytes()
    manifest = sif.read_sif(image).objects[3]
    q = struct.Struct("<q")
    no, cut = "`image.sif` is no valid SIF:", "`image.sif` is cut short:"
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
        sif.read_manifest(image)
    problem = f"`image.sif` says that its `envbuild.manifest` has {size} bytes, which is too much"
    assert caught.value.problem == problem


def test_a_foreign_sif(image: Path) -> None:
    patch(image, descriptor_at(4) + 585 - 384 - 128, b"something.else\0\0\0")
    assert len(sif.read_sif(image).partitions) == 3
    for read in (sif.read_manifest, sif.verify_parts, lambda path: sif.read_data(path, sif.LOCK)):
        with pytest.raises(RequestError) as caught:
            read(image)
        assert caught.value.problem == "`image.sif` is a SIF that envbuild did not build"


def test_data_that_is_not_there(image: Path) -> None:
    with pytest.raises(RequestError, match=r"`image\.sif` holds no `envbuild.sbom`"):
        sif.read_data(image, "envbuild.sbom")
    with pytest.raises(RequestError, match="holds something else than data under the name `root`"):
        sif.read_data(image, "root")


def test_another_architecture_is_read(tmp_path: Path, parts: list[tuple[Part, Path]], image: Path) -> None:
    manifest = trees.manifest([part for part, _ in parts], architecture="arm64")
    sif.write_sif(tmp_path / "arm.sif", architecture="arm64", manifest=manifest, parts=parts, data=[])
    read = sif.read_sif(tmp_path / "arm.sif")
    assert (read.architecture, read.partitions[0].architecture) == ("arm64", "arm64")
    patch(image, 45, b"77\0")
    assert sif.read_sif(image).architecture == "unknown"


def test_names_are_safe_to_show(image: Path) -> None:
    patch(image, descriptor_at(5) + 585 - 384 - 128, b"\x1b[31m\xffred\0\0\0\0\0\0")
    assert sif.read_sif(image).objects[4].name == "\ufffd[31m\ufffdred"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    directory = tmp_path_factory.mktemp("sample")
    made = []
    for name, role in (("root", "root"), ("top", "overlay")):
        path = directory / f"{name}.squashfs"
        path.write_bytes(BLOBS[name])
        digest = "sha256:" + hashlib.sha256(BLOBS[name]).hexdigest()
        made.append((Part(role=role, layers=(name,), digest=digest, size_bytes=len(BLOBS[name])), path))  # type: ignore[arg-type]
    write(directory / "image.sif", made)
    return directory / "mutant.sif", (directory / "image.sif").read_bytes()


# The tables, where mistakes matter most, and the data behind them.
places = st.one_of(st.integers(0, 127), st.integers(4096, 4096 + 585 * 8), st.integers(32_176, 45_000))
edits = st.lists(st.tuples(places, st.binary(min_size=1, max_size=9)), max_size=6)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    for read in (sif.read_sif, sif.read_manifest, sif.verify_parts):
        try:
            read(path)
        except EnvbuildError as error:
            assert error.problem  # noqa: PT017


@pytest.fixture
def whole(tmp_path: Path, parts: list[tuple[Part, Path]]) -> Path:
    """Return an image whose manifest has the digest of its lock."""
    path = tmp_path / "whole.sif"
    digest = "sha256:" + hashlib.sha256(DATA[0].content).hexdigest()
    manifest = trees.manifest([part for part, _ in parts], lock_digest=digest)
    data = [*DATA, sif.DataObject(name=sif.SBOM, content=b'{"bomFormat":"CycloneDX"}\n', kind="sbom")]
    sif.write_sif(path, architecture="amd64", manifest=manifest, parts=parts, data=data)
    return path


def found(path: Path) -> tuple[str, ...]:
    """Return what is found around an image's file systems, or by whoever reads it."""
    try:
        return around.changed_around(path)
    except RequestError as error:
        return (error.problem,)


def test_a_flipped_bit_around_the_file_systems_is_found(whole: Path) -> None:
    assert around.changed_around(whole) == ()
    read = sif.read_sif(whole)
    content = whole.read_bytes()
    data = [thing for thing in read.objects if thing.kind != sifformat.Kind.PARTITION]
    assert [thing.name for thing in data] == list(sifwriter.DATA)
    places = [
        *range(sifformat.HEADER_FIXED_BYTES),
        *range(4096, descriptor_at(len(read.objects) + 1), 2),
        *(place for thing in data for place in range(thing.offset, thing.end, 5)),
    ]
    for bit, place in enumerate(places):
        patch(whole, place, bytes([content[place] ^ 1 << bit % 8]))
        assert found(whole), f"byte {place}"
        patch(whole, place, content[place : place + 1])
    assert around.changed_around(whole) == ()


def test_an_image_of_the_older_order_is_whole(whole: Path) -> None:
    """Data lay before the file systems."""
    manifest, read, content = sif.read_manifest(whole), sif.read_sif(whole), whole.read_bytes()
    data = [(kind, name, thing.size) for name, kind in sifwriter.DATA.items() if (thing := read.find(name))]
    older = sifwriter.lay_out(data, manifest.parts, manifest.architecture, data_first=True)
    assert older[0].offset == sifformat.DATA_OFFSET
    moved = bytearray(content[: sifformat.DATA_OFFSET].ljust(len(content) + 8192, b"\0"))
    for was, now in zip(read.objects, older, strict=True):
        moved[descriptor_at(now.number) : descriptor_at(now.number + 1)] = now.pack()
        moved[now.offset : now.end] = content[was.offset : was.end]
    whole.write_bytes(moved)
    assert around.changed_around(whole) == ()
    assert all(verdict.ok for verdict in sif.verify_parts(whole))


def test_what_is_changed_around_the_file_systems_is_named(whole: Path) -> None:
    lock = sif.read_sif(whole).find(sif.LOCK)
    assert lock is not None
    patch(whole, lock.offset, b"N")
    assert around.changed_around(whole) == ("the lock",)
    patch(whole, descriptor_at(3) + 5, b"\7")  # its number
    assert around.changed_around(whole) == ("the descriptor of `labels`", "the lock")
    patch(whole, 0, b"#!/bin/sh\n\0")
    (told,) = around.changed_around(whole)
    assert told.startswith("the header, or the data that its identity is made from: manifest, plan, bill of")


def test_data_that_are_another_and_an_image_without_its_bill_are_refused(whole: Path) -> None:
    around.check_around(whole)
    bill = sif.read_sif(whole).find(sif.SBOM)
    assert bill is not None
    patch(whole, bill.offset + 2, b"B")
    with pytest.raises(RequestError, match=r"`whole\.sif` was changed or damaged: the header, or the data"):
        around.check_around(whole)
    patch(whole, bill.offset + 2, b"b")
    patch(whole, descriptor_at(7), sifformat.Descriptor.pack(replace(bill, name="else")))
    assert around.changed_around(whole)


def test_an_image_whose_identity_is_of_its_manifest_alone_is_whole(whole: Path) -> None:
    """As images were written before: their plan and bill of materials are vouched for by nobody."""
    plan, lock = sif.read_sif(whole).find(sif.PLAN), sif.read_sif(whole).find(sif.LOCK)
    assert plan is not None
    assert lock is not None
    patch(whole, 48, sifwriter.identity_of(sif.read_manifest(whole).digest).bytes)
    assert around.changed_around(whole) == ()
    patch(whole, plan.offset, b"[")
    assert around.changed_around(whole) == ()
    patch(whole, lock.offset, b"N")
    assert around.changed_around(whole) == ("the lock",)


def test_a_signature_changes_nothing(whole: Path) -> None:
    read = sif.read_sif(whole)
    signature = sifformat.Descriptor(
        number=len(read.objects) + 1,
        kind=sifformat.Kind.SIGNATURE,
        link=0xF0000001,
        offset=read.size_bytes,
        size=7,
        padded_size=7,
        name="part-signature",
    )
    with whole.open("ab") as file:
        file.write(b"signed\n")
    patch(whole, descriptor_at(signature.number), signature.pack())
    free, modified = sifformat.HEADER_FIXED_BYTES + 16, sifformat.HEADER_FIXED_BYTES + 8
    (count,) = struct.unpack("<q", whole.read_bytes()[free : free + 8])
    patch(whole, free, struct.pack("<q", count - 1))
    patch(whole, modified, struct.pack("<q", 1700000000))
    assert around.changed_around(whole) == ()
