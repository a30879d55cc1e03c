"""The loader, simulated: ld.so(8)'s order, and the same answer as the real one."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest

from envbuild.elf.loader import (
    Closure,
    Search,
    cache_directories,
    closure,
    default_directories,
)
from envbuild.elf.read import ElfObject, read_elf
from tests.support.elves import Elf

DEFAULT = default_directories("amd64")


class Files:
    """A tree in memory: path → what lies there, or the path that it links to."""

    def __init__(self, files: dict[str, Elf | str]) -> None:
        self._objects = {
            path: read_elf(io.BytesIO(elf.bytes())) for path, elf in files.items() if isinstance(elf, Elf)
        }
        self._links = {path: target for path, target in files.items() if isinstance(target, str)}

    def lookup(self, path: str) -> ElfObject | None:
        whole = os.path.normpath(path)
        return self._objects.get(self._links.get(whole, whole))


def lib(soname: str, *needed: str, **more: Any) -> Elf:
    return Elf(soname=soname, needed=needed, **more)


def loaded(found: Closure) -> list[tuple[str, str]]:
    return [(each.path, each.rule) for each in found.objects]


@pytest.mark.parametrize(
    ("program", "winner"),
    [
        ({"rpath": "/rpath"}, ("/rpath/libx.so", "DT_RPATH")),
        ({"runpath": "/runpath"}, ("/env/libx.so", "LD_LIBRARY_PATH")),
        # DT_RUNPATH makes the loader ignore DT_RPATH.
        ({"rpath": "/rpath", "runpath": "/runpath"}, ("/env/libx.so", "LD_LIBRARY_PATH")),
        ({}, ("/env/libx.so", "LD_LIBRARY_PATH")),
    ],
)
def test_rpath_comes_before_the_environment_and_runpath_behind(
    program: dict[str, Any], winner: tuple[str, str]
) -> None:
    files = {f"{place}/libx.so": lib("libx.so") for place in ("/rpath", "/runpath", "/env", "/cache", "/lib")}
    tree = Files({"/bin/app": Elf(needed=("libx.so",), **program), **files})
    search = Search(library_path=("/env",), cache=("/cache",), default=DEFAULT)
    assert loaded(closure("/bin/app", tree, search))[1] == winner


@pytest.mark.parametrize(
    ("gone", "winner"),
    [
        ((), ("/env/libx.so", "LD_LIBRARY_PATH")),
        (("/env",), ("/runpath/libx.so", "DT_RUNPATH")),
        (("/env", "/runpath"), ("/cache/libx.so", "cache")),
        (("/env", "/runpath", "/cache"), ("/usr/lib/libx.so", "default")),
        (("/env", "/runpath", "/cache", "/usr/lib"), ("/own/libx.so", "preloaded")),
    ],
)
def test_what_comes_behind_the_environment(gone: tuple[str, ...], winner: tuple[str, str]) -> None:
    places = [one for one in ("/env", "/runpath", "/cache", "/usr/lib", "/own") if one not in gone]
    tree = Files(
        {
            "/bin/app": Elf(needed=("libx.so",), runpath="/runpath"),
            **{f"{place}/libx.so": lib("libx.so") for place in places},
        }
    )
    search = Search(
        library_path=("/env",), cache=("/cache",), default=DEFAULT, preloaded={"libx.so": "/own/libx.so"}
    )
    assert loaded(closure("/bin/app", tree, search))[1] == winner


def test_rpath_is_inherited_and_runpath_is_not() -> None:
    tree = {"/l/libmid.so": lib("libmid.so", "libend.so"), "/l/libend.so": lib("libend.so")}
    app: dict[str, Any] = {"needed": ("libmid.so",)}
    inherited = closure("/app", Files({"/app": Elf(rpath="/l", **app), **tree}), Search())
    assert loaded(inherited)[1:] == [("/l/libmid.so", "DT_RPATH"), ("/l/libend.so", "DT_RPATH")]
    own = closure("/app", Files({"/app": Elf(runpath="/l", **app), **tree}), Search())
    assert [(each.path, each.name) for each in own.missing] == [("/l/libmid.so", "libend.so")]


def test_rpath_is_inherited_from_every_object_between() -> None:
    tree = Files(
        {
            "/app": Elf(needed=("libtop.so",)),
            "/env/libtop.so": lib("libtop.so", "libmid.so", rpath="/private"),
            "/private/libmid.so": lib("libmid.so", "libend.so"),
            "/private/libend.so": lib("libend.so"),
            "/env/libend.so": lib("libend.so"),
        }
    )
    found = closure("/app", tree, Search(library_path=("/env",)))
    assert loaded(found)[3] == ("/private/libend.so", "DT_RPATH")


def test_origin_in_the_environment_is_the_programs() -> None:
    tree = Files(
        {
            "/o/app": Elf(needed=("liba.so",)),
            "/o/l/liba.so": lib("liba.so", "libb.so"),
            "/o/l/libb.so": lib("libb.so"),
        }
    )
    assert not closure("/o/app", tree, Search(library_path=("$ORIGIN/l",))).missing


def test_an_object_with_runpath_inherits_no_rpath() -> None:
    tree = Files(
        {
            "/app": Elf(needed=("libmid.so",), rpath="/l"),
            "/l/libmid.so": lib("libmid.so", "libend.so", runpath="/elsewhere"),
            "/l/libend.so": lib("libend.so"),
        }
    )
    assert [each.name for each in closure("/app", tree, Search()).missing] == ["libend.so"]


def test_what_is_loaded_already_wins_over_every_path() -> None:
    tree = Files(
        {
            "/app": Elf(needed=("liba.so.1", "libb.so")),
            "/env/liba.so.1": lib("liba.so.1"),
            "/env/libb.so": lib("libb.so", "liba.so.1", rpath="/private"),
            "/private/liba.so.1": lib("liba.so.1"),
        }
    )
    found = closure("/app", tree, Search(library_path=("/env",)))
    assert [path for path, _ in loaded(found)] == ["/app", "/env/liba.so.1", "/env/libb.so"]
    assert found.objects[2].needs["liba.so.1"] is found.objects[1]


def test_a_soname_is_a_name_and_so_is_the_file_s() -> None:
    """libmpi.so is opened, calls itself libmpi.so.12, and whoever asks for that is content."""
    tree = Files(
        {
            "/app": Elf(needed=("libmpi.so", "libuser.so")),
            "/env/libmpi.so": lib("libmpi.so.12"),
            "/env/libuser.so": lib("libuser.so", "libmpi.so.12"),
        }
    )
    found = closure("/app", tree, Search(library_path=("/env",)))
    assert not found.missing
    assert found.objects[2].needs["libmpi.so.12"] is found.objects[1]


def test_one_file_under_two_names_is_loaded_once() -> None:
    tree = Files(
        {
            "/app": Elf(needed=("libold.so", "libnew.so")),
            "/env/libnew.so": Elf(),
            "/env/libold.so": "/env/libnew.so",
        }
    )
    found = closure("/app", tree, Search(library_path=("/env",)))
    assert [path for path, _ in loaded(found)] == ["/app", "/env/libold.so"]
    assert found.objects[0].needs["libnew.so"] is found.objects[1]


def test_origin_lib_and_platform() -> None:
    tree = Files(
        {
            "/opt/x/bin/app": Elf(
                needed=("liba.so", "libb.so", "libc.so"),
                runpath="$ORIGIN/../lib:${ORIGIN}/../${LIB}:/p/$PLATFORM:/no/$ORIGINAL",
            ),
            "/opt/x/lib/liba.so": lib("liba.so"),
            "/opt/x/lib/x86_64-linux-gnu/libb.so": lib("libb.so"),
            "/p/x86_64/libc.so": lib("libc.so"),
        }
    )
    assert not closure("/opt/x/bin/app", tree, Search()).missing


def test_origin_is_the_directory_where_a_link_was_found() -> None:
    tree = Files(
        {
            "/app": Elf(needed=("liba.so",)),
            "/links/liba.so": "/real/liba.so",
            "/real/liba.so": lib("liba.so", "libb.so", runpath="$ORIGIN"),
            "/real/libb.so": lib("libb.so"),
        }
    )
    assert [each.name for each in closure("/app", tree, Search(library_path=("/links",))).missing] == [
        "libb.so"
    ]


def test_a_library_of_another_machine_is_passed_over() -> None:
    tree = Files(
        {
            "/app": Elf(needed=("liba.so",)),
            "/one/liba.so": lib("liba.so", machine="arm64"),
            "/two/liba.so": lib("liba.so"),
        }
    )
    found = closure("/app", tree, Search(library_path=("/one", "/two")))
    assert found.objects[1].path == "/two/liba.so"


def test_a_name_with_a_slash_is_a_path() -> None:
    tree = Files(
        {"/o/app": Elf(needed=("/x/liba.so", "$ORIGIN/libb.so")), "/x/liba.so": Elf(), "/o/libb.so": Elf()}
    )
    assert loaded(closure("/o/app", tree, Search()))[1:] == [("/x/liba.so", "path"), ("/o/libb.so", "path")]


def test_an_object_may_refuse_the_loaders_own_directories() -> None:
    tree = Files({"/app": Elf(needed=("liba.so",), flags_1=0x800), "/lib/liba.so": lib("liba.so")})
    assert closure("/app", tree, Search(default=DEFAULT)).missing


def test_what_is_opened_is_looked_for_as_its_opener_would_and_is_never_missing() -> None:
    tree = Files(
        {
            "/app": Elf(needed=("libdnn.so",), rpath="/l"),
            "/l/libdnn.so": lib("libdnn.so"),
            "/l/libdnn_ops.so": lib("libdnn_ops.so", "libgone.so"),
        }
    )
    found = closure("/app", tree, Search(), opens={"libdnn.so": ["libdnn_ops.so", "libdnn_none.so"]})
    assert found.objects[2].path == "/l/libdnn_ops.so"
    assert [each.name for each in found.missing] == ["libgone.so"]


def test_what_is_no_object_cannot_be_loaded() -> None:
    with pytest.raises(ValueError, match="/app"):
        closure("/app", Files({}), Search())


def test_directories_of_the_cache() -> None:
    files = {
        "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n# no\n/last # end\n/a\n",
        "/etc/ld.so.conf.d/b.conf": "/b\n/a/\n",
        "/etc/ld.so.conf.d/a.conf": "/a=libc6\ninclude b.conf ../ld.so.conf\n",
        "/etc/ld.so.conf.d/sub/c.conf": "/c\n",
        "/etc/ld.so.conf.d/a.conf.old": "/old\n",
    }
    assert cache_directories(files) == ("/a", "/b", "/last")
    assert cache_directories({}) == ()
