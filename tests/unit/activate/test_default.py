"""The default version: its file, and the order of versions."""

from __future__ import annotations

import pytest

from envbuild.activate.layout import read_default, version_order
from envbuild.errors import RequestError


@pytest.mark.parametrize(
    "versions",
    [
        ["2026.9", "2026.11"],
        ["1.0rc1", "1.0", "1.0.post1"],
        ["1.9", "1.10"],
        ["r9", "r10", "0.1"],
        ["nightly", "stable-2", "stable-10", "1.0"],
    ],
)
def test_the_highest_comes_last(versions):
    assert sorted(set(versions), key=version_order) == versions


def test_without_a_request_no_default_is_chosen(put):
    installed = put()
    assert not installed.default
    assert read_default(installed.layout) is None


def test_the_one_that_was_asked_for_is_it_and_stays_it(put, manifest):
    installed = put(default=True)
    assert installed.default
    assert not put(default=True).changed
    assert not put(runnable=manifest(version="2026.12")).default
    assert read_default(installed.layout) == "2026.11"
    # Installed once more without the wish, it is still chosen.
    assert put().default
    assert put(runnable=manifest(version="2026.12"), default=True).changed
    assert not put().default


@pytest.mark.parametrize("name", ["default", ".modulerc", ".modulerc.lua", ".version"])
def test_a_choice_of_somebody_else_stays(put, tmp_path, name):
    theirs = tmp_path / "sw/modulefiles/pytorch-mpi" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("#%Module1.0\nset ModulesVersion theirs\n")
    with pytest.raises(RequestError, match="chosen by a file that envbuild did not make") as caught:
        put(default=True)
    assert caught.value.at is not None
    assert caught.value.at.path == theirs
    assert not (tmp_path / "sw/envs").exists()
    assert put().changed
    assert theirs.read_text().endswith("theirs\n")
