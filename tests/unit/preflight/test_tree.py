"""File systems one above the other, as an overlay shows them."""

from __future__ import annotations

from envbuild.elf.read import ElfObject, Symbols
from envbuild.preflight.scan import LayerScan, Scanned
from envbuild.preflight.tree import ImageTree


def elf(name: str) -> Scanned:
    return Scanned(ElfObject(machine="amd64", soname=name), Symbols(frozenset(), frozenset()))


def layer(
    objects: dict[str, Scanned] | None = None,
    links: dict[str, str] | None = None,
    *,
    files: tuple[str, ...] = (),
    directories: tuple[str, ...] = (),
    whiteouts: tuple[str, ...] = (),
) -> LayerScan:
    places = {
        parent for path in (*(objects or {}), *(links or {}), *files, *whiteouts) for parent in parents(path)
    }
    return LayerScan(
        directories=sorted(places | {*directories, "/"}),
        files=list(files),
        whiteouts=list(whiteouts),
        links=links or {},
        objects=objects or {},
    )


def parents(path: str) -> list[str]:
    pieces = path.split("/")[1:-1]
    return ["/" + "/".join(pieces[: count + 1]) for count in range(len(pieces))]


def test_upper_layers_win_and_directories_are_merged() -> None:
    low, high = elf("low"), elf("high")
    tree = ImageTree([layer({"/lib/a": low, "/lib/b": low}), layer({"/lib/a": high})])
    assert tree.at("/lib/a") is high
    assert tree.at("/lib/b") is low
    assert [path for path, _ in tree.objects()] == ["/lib/a", "/lib/b"]


def test_a_plain_file_hides_an_object() -> None:
    tree = ImageTree([layer({"/lib/a": elf("a")}), layer(files=("/lib/a",))])
    assert tree.lookup("/lib/a") is None
    assert tree.real("/lib/a") == "/lib/a"


def test_a_whiteout_hides_a_path_and_all_below_it() -> None:
    low = layer({"/opt/x/a": elf("a"), "/opt/x/sub/b": elf("b"), "/opt/xy": elf("xy")})
    tree = ImageTree([low, layer(whiteouts=("/opt/x",))])
    assert [path for path, _ in tree.objects()] == ["/opt/xy"]
    assert tree.real("/opt/x") is None
    again = ImageTree([low, layer(whiteouts=("/opt/x",)), layer({"/opt/x/new": elf("new")})])
    assert [path for path, _ in again.objects()] == ["/opt/x/new", "/opt/xy"]


def test_a_link_that_replaces_a_directory_hides_what_it_held() -> None:
    tree = ImageTree([layer({"/a/x": elf("x"), "/b/y": elf("y")}), layer(links={"/a": "b"})])
    assert [path for path, _ in tree.objects()] == ["/b/y"]
    assert tree.real("/a/y") == "/b/y"


def test_a_directory_replaces_a_link() -> None:
    tree = ImageTree([layer({"/b/y": elf("y")}, {"/a": "b"}), layer({"/a/x": elf("x")})])
    assert tree.real("/a/x") == "/a/x"
    assert tree.real("/a/y") is None


def test_links_are_followed_wherever_they_stand() -> None:
    found = elf("found")
    tree = ImageTree(
        [
            layer(
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
        ]
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
    assert list(tree.names()) == [
        "/abs.so",
        "/out.so",
        "/usr/lib/real.so",
        "/usr/lib/real.so.1",
        "/usr/lib/up.so",
    ]


def test_what_a_host_lends_stands_in_a_directory_of_its_own() -> None:
    lent = elf("lent")
    tree = ImageTree([layer()], {"libmpi.so.12": lent, "libmpi.so": lent})
    assert tree.lookup("/media/envbuild/libmpi.so.12") is tree.lookup("/media/envbuild/libmpi.so")


def test_texts_are_those_of_the_uppermost_layer() -> None:
    low = LayerScan(
        directories=["/"], texts={"/etc/ld.so.conf": "/low\n", "/etc/ld.so.conf.d/a.conf": "/a\n"}
    )
    high = LayerScan(directories=["/"], texts={"/etc/ld.so.conf": "/high\n"})
    assert ImageTree([low, high]).texts == {**low.texts, **high.texts}
    hidden = LayerScan(directories=["/"], links={"/etc/ld.so.conf": "other"})
    assert list(ImageTree([low, hidden]).texts) == ["/etc/ld.so.conf.d/a.conf"]
