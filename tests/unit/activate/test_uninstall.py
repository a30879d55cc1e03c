"""Remove what was installed: all of it, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.activate import installed
from envbuild.activate.installed import Uninstalled, find_installed, select, uninstall
from envbuild.activate.layout import Layout, parse_module, read_default
from envbuild.errors import EnvbuildError, RequestError
from envbuild.workflows.module import uninstall_modules

NAME = "pytorch-mpi"


def tree(root: Path) -> dict[str, str]:
    """Everything below a directory, with what it holds."""
    return {
        path.relative_to(root).as_posix(): (
            f"-> {path.readlink()}" if path.is_symlink() else "" if path.is_dir() else path.read_text()
        )
        for path in sorted(root.rglob("*"))
    }


def labels(root: Path) -> list[str]:
    return [module.layout.label for module in find_installed(root)]


@pytest.fixture
def root(tmp_path):
    """A root where somebody else has modules too, of the same name among them."""
    for name in ("modulefiles/gcc/13", f"modulefiles/{NAME}/theirs", f"envs/{NAME}/notes/file"):
        path = tmp_path / "sw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#%Module1.0\n")
    return tmp_path / "sw"


def take(root: Path, text: str, *, every: bool = False) -> tuple[Uninstalled, ...]:
    return uninstall_modules(text, root=root, every=every)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("text", [NAME, f"{NAME}/2026.11"])
def test_all_is_as_it_was_before(put, root, image, linked, text):
    before = tree(root)
    layout = put(linked=linked, default=True).layout
    assert tree(root) != before
    (done,) = take(root, text)
    assert tree(root) == before
    assert done.module == f"{NAME}/2026.11"
    assert set(done.removed) > {layout.modulefile, layout.home}
    assert (done.default, done.default_moved) == (None, True)
    assert image.read_bytes() == b"image one"


def test_directories_that_are_empty_go(put, tmp_path):
    put()
    take(tmp_path / "sw", NAME)
    assert sorted(path.name for path in (tmp_path / "sw").rglob("*")) == ["envs", "modulefiles"]


def test_releases_that_were_replaced_go_too(put, root, manifest, tmp_path):
    before = tree(root)
    put()
    put(runnable=manifest(summary="another"))
    (listed,) = find_installed(root)
    assert len(listed.kept) == 1
    take(root, NAME)
    assert tree(root) == before


def test_other_versions_stay(put, root, manifest):
    put(runnable=manifest(version="2026.12"))
    before = tree(root)
    put()
    take(root, f"{NAME}/2026.11")
    assert tree(root) == before
    assert labels(root) == [f"{NAME}/2026.12"]


@pytest.mark.parametrize(
    ("chosen", "gone", "after", "moved"),
    [
        ("2026.9", "2026.9", "2026.11", True),
        ("2026.11", "2026.11", "2026.10", True),
        ("2026.9", "2026.11", "2026.9", False),
        (None, "2026.11", None, False),
    ],
)
def test_the_default_goes_to_the_highest_that_is_left(put, root, manifest, chosen, gone, after, moved):
    for version in ("2026.9", "2026.10", "2026.11"):
        put(runnable=manifest(version=version), default=version == chosen)
    (done,) = take(root, f"{NAME}/{gone}")
    assert (done.default, done.default_moved) == (after, moved)
    assert read_default(Layout(root=root, name=NAME, version=gone)) == after
    assert [each.default for each in find_installed(root)].count(True) == (after is not None)


def test_a_default_that_somebody_else_chose_stays(put, root):
    theirs = root / "modulefiles" / NAME / ".version"
    theirs.write_text('#%Module1.0\nset ModulesVersion "2026.11"\n')
    put()
    take(root, NAME)
    assert theirs.exists()


def test_of_several_versions_one_is_named_or_all_are_meant(put, root, manifest):
    before = tree(root)
    for version in ("2026.9", "2026.11"):
        put(runnable=manifest(version=version), default=True)
    full = tree(root)
    with pytest.raises(RequestError, match=r"in 2 versions: 2026\.9, 2026\.11") as caught:
        take(root, NAME)
    assert "--all" in str(caught.value.hint)
    assert tree(root) == full
    assert [each.module for each in take(root, NAME, every=True)] == [f"{NAME}/2026.9", f"{NAME}/2026.11"]
    assert tree(root) == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("../etc", "names no module"),
        (f"{NAME}/../../x", "names no module"),
        (f"{NAME}/", "names no module"),
        ("", "names no module"),
        ("nothing", "no module `nothing` is installed under"),
        (f"{NAME}/2027", f"no module `{NAME}/2027` is installed under"),
        (f"{NAME}/theirs", "envbuild did not make this modulefile"),
        (f"{NAME}/notes", "envbuild did not install this"),
    ],
)
def test_what_is_not_there_or_not_ours_is_refused(put, root, text, problem):
    put()
    before = tree(root)
    with pytest.raises(EnvbuildError, match=problem) as caught:
        take(root, text)
    assert caught.value.exit_code == 2
    assert tree(root) == before


def test_a_name_that_is_nearly_right_gets_a_hint(put, root):
    put()
    with pytest.raises(RequestError) as caught:
        take(root, "pytorch-mip")
    assert caught.value.hint == f"did you mean `{NAME}`?"
    with pytest.raises(RequestError) as caught:
        take(root, f"{NAME}/2026.12")
    assert caught.value.hint == f"installed: {NAME}/2026.11"


def test_all_that_is_in_the_way_is_reported_at_once(put, root, manifest):
    layout = put().layout
    put(runnable=manifest(version="2026.12"))
    theirs = [layout.home / "results.txt", layout.home / "bin/mine", layout.modulefile]
    for path in theirs:
        path.write_text("#%Module1.0\n")
    before = tree(root)
    with pytest.raises(EnvbuildError) as caught:
        take(root, NAME, every=True)
    release = layout.in_use
    reported = {error.at.path for error in caught.value.each() if error.at is not None}
    assert reported == {release / "results.txt", release / "bin/mine", layout.modulefile}
    assert tree(root) == before, "the other version, which nothing keeps, is still there"


def test_uninstall_itself_refuses_what_is_not_ours(put, root):
    layout = put().layout
    (layout.home / "results.txt").write_text("mine")
    before = tree(root)
    (layout,) = select(root, NAME, None, every=False)
    with pytest.raises(RequestError, match="did not put this into the installation"):
        uninstall(layout)
    assert tree(root) == before


@pytest.mark.parametrize("damage", ["record", "link", "name"])
def test_a_directory_that_only_looks_like_a_release_is_refused(put, root, damage):
    layout = put().layout
    release = layout.home.parent / layout.home.readlink()
    if damage == "record":
        (release / "installed.json").write_text("[" * 100_000)
    elif damage == "link":
        elsewhere = root / "elsewhere"
        release.rename(elsewhere)
        release.symlink_to(elsewhere)
    else:
        record = release / "installed.json"
        record.write_text(record.read_text().replace(NAME, "another"))
    before = tree(root)
    with pytest.raises(RequestError, match="envbuild did not install this"):
        take(root, NAME)
    assert tree(root) == before


@pytest.mark.parametrize("part", ["modulefiles", "envs"])
def test_a_directory_that_this_user_may_not_change_leaves_all_as_it_is(put, root, monkeypatch, part):
    put(default=True)
    before = tree(root)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != root / part / NAME and access(path, mode))
    with pytest.raises(RequestError, match=r"cannot uninstall under .*: Permission denied") as caught:
        take(root, NAME)
    assert caught.value.hint == "who installed it can remove it"
    assert tree(root) == before


CHANGES = [
    (Path, "unlink"),
    (Path, "rename"),
    (Path, "rmdir"),
    (shutil, "rmtree"),
    (installed, "write_marker"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("step", range(12))
def test_an_interrupted_removal_is_completed_by_the_next(
    put: Any, root: Path, manifest: Any, monkeypatch: pytest.MonkeyPatch, step: int, others: bool, after: bool
) -> None:
    """Wherever it is interrupted, `module load` gets the whole module or none."""
    if others:
        put(runnable=manifest(version="2026.9"))
    before = tree(root)
    layout = put().layout
    put(runnable=manifest(summary="another"), default=True)
    steps: list[str] = []

    def interrupting(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if arguments and ".partial" in str(arguments[0]):
                return change(*arguments, **options)
            steps.append(str(arguments))
            if len(steps) == step + 1 and not after:
                raise KeyboardInterrupt
            result = change(*arguments, **options)
            if len(steps) == step + 1:
                raise KeyboardInterrupt
            return result

        return call

    with monkeypatch.context() as patch:
        for place, name in CHANGES:
            patch.setattr(place, name, interrupting(getattr(place, name)))
        with contextlib.suppress(KeyboardInterrupt):
            take(root, f"{NAME}/2026.11")
    if layout.modulefile.exists():
        assert (layout.home / "bin/python").exists()
    with contextlib.suppress(RequestError):  # it was at its end
        take(root, f"{NAME}/2026.11")
    expected = {name: text for name, text in before.items() if not name.endswith("/.version")}
    if others:
        assert read_default(layout) in (None, "2026.9")
        (root / "modulefiles" / NAME / ".version").unlink(missing_ok=True)
    assert tree(root) == expected


@pytest.mark.parametrize("missing", ["modulefile", "image", "home"])
def test_a_broken_one_can_be_removed_too(put, root, missing):
    before = tree(root)
    layout = put().layout
    {
        "modulefile": layout.modulefile.unlink,
        "image": (layout.home / "image.sif").unlink,
        "home": layout.home.unlink,
    }[missing]()
    (listed,) = find_installed(root)
    assert listed.problems
    take(root, NAME)
    assert tree(root) == before


def test_all_is_found_by_name_and_version(put, root, manifest):
    for version in ("2026.11", "2026.9"):
        put(runnable=manifest(version=version), default=True)
    put(runnable=manifest(name="alone", version="1"))
    modules = find_installed(root)
    assert [module.layout.label for module in modules] == ["alone/1", f"{NAME}/2026.9", f"{NAME}/2026.11"]
    assert [module.default for module in modules] == [False, True, False]
    assert all(module.problems == () for module in modules)
    assert modules[0].image == root / "envs/alone/1/image.sif"
    assert modules[0].record is not None
    assert modules[0].record.digest == manifest(name="alone", version="1").digest


def test_what_is_missing_is_listed(put, root, image):
    layout = put(linked=True).layout
    image.unlink()
    layout.modulefile.unlink()
    (listed,) = find_installed(root)
    assert listed.image == image
    assert listed.problems == (f"{layout.modulefile} is missing", f"{image} is missing")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', '{"format": 2, "digest": "x"}', "\0", "[" * 100_000]
)
def test_a_record_that_cannot_be_read_breaks_one_module_alone(put, root, manifest, text):
    layout = put().layout
    put(runnable=manifest(version="2026.12"))
    (layout.home / "installed.json").write_text(text)
    broken, sound = find_installed(root)
    assert broken.problems == (f"{layout.home} holds no installation",)
    assert sound.problems == ()


def test_names_and_versions_are_told_apart():
    assert parse_module("a.b/1.0+x") == ("a.b", "1.0+x")
    assert parse_module("a") == ("a", None)


def test_what_cannot_be_deleted_is_listed_as_broken_until_the_next_removal(put, root, monkeypatch):
    before = tree(root)
    layout = put().layout

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(installed, "remove", refuse)
        with pytest.raises(RequestError, match="Permission denied"):
            take(root, NAME)
    assert not layout.modulefile.exists()
    (listed,) = find_installed(root)
    assert listed.problems
    take(root, NAME)
    assert tree(root) == before
