"""The files of an image, with links followed and with libraries of a host."""

from __future__ import annotations

from envbuild.elf.read import ElfObject, Symbols
from envbuild.preflight.processes import ImageTree
from envbuild.preflight.scan import FileSystemScan, ScannedFile


def library(soname: str) -> ScannedFile:
    return ScannedFile(ElfObject(machine="amd64", soname=soname), Symbols(frozenset(), frozenset()))


def tree_of(
    objects: dict[str, ScannedFile],
    links: dict[str, str] | None = None,
    *,
    files: tuple[str, ...] = (),
    host_libs: dict[str, ScannedFile] | None = None,
) -> ImageTree:
    places = {parent for path in (*objects, *(links or {}), *files) for parent in parents(path)}
    scan = FileSystemScan(
        directories=sorted(places | {"/"}), files=list(files), links=links or {}, objects=objects
    )
    return ImageTree(scan, host_libs)


def parents(path: str) -> list[str]:
    pieces = path.split("/")[1:-1]
    return ["/" + "/".join(pieces[: count + 1]) for count in range(len(pieces))]


def test_a_plain_file_is_no_object() -> None:
    tree = tree_of({"/lib/b": library("b")}, files=("/lib/a",))
    assert tree.lookup("/lib/a") is None
    assert tree.real("/lib/a") == "/lib/a"
    assert [path for path, _ in tree.objects()] == ["/lib/b"]


def test_links_are_followed_wherever_they_stand() -> None:
    found = library("found")
    tree = tree_of(
        {"/usr/lib/real.so.1": found},
        {
            "/lib": "usr/lib",
            "/usr/lib/real.so": "real.so.1",
            "/usr/lib/up.so": "../lib/./real.so",
            "/abs.so": "/lib/up.so",
            "/out.so": "../../../lib/real.so",
            "/gone.so": "nowhere",
            "/one": "two",
            "/two": "one",
        },
    )
    for path in (
        "/lib/real.so",
        "/lib/up.so",
        "/abs.so",
        "/out.so",
        "//lib//real.so",
        "/lib/../lib/real.so.1",
    ):
        assert tree.lookup(path) is found.elf, path
    for path in ("/gone.so", "/one", "/one/x", "/usr/lib/real.so.1/x", "/lib", "/", "", "/a" * 100_000):
        assert tree.lookup(path) is None, path
    assert tree.real("/") == "/"
    assert [path for path, _ in tree.names()] == [
        "/abs.so",
        "/out.so",
        "/usr/lib/real.so",
        "/usr/lib/real.so.1",
        "/usr/lib/up.so",
    ]


def test_libraries_of_a_host_hide_what_the_image_has_there() -> None:
    lent, own = library("lent"), library("own")
    tree = tree_of(
        {"/media/own.so": own, "/mediafile": own}, host_libs={"libmpi.so.12": lent, "libmpi.so": lent}
    )
    assert tree.at("/media/envbuild/libmpi.so.12") is tree.at("/media/envbuild/libmpi.so") is lent
    assert tree.real("/media/own.so") is None
    assert tree.at("/mediafile") is own
