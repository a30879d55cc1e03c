"""Images get the stripes of the site file on Lustre, and are written in any case."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from envbuild.events import Event, Warned
from envbuild.spec.load import load
from envbuild.spec.site import Site
from envbuild.system import quota
from envbuild.system.files import atomic_file
from envbuild.workflows.striping import striped
from tests.support.lustre import lustre


def site(storage: str) -> Site:
    return load(Site, f"name: here\nstorage: {storage}\n".encode(), Path("site.yaml")).value


def written(directory: Path, storage: str) -> tuple[Path, list[Event]]:
    """Write a file as images are written."""
    events: list[Event] = []
    path = directory / "a.sif"
    with atomic_file(path, mode=0o777, create=striped(site(storage), events.append)) as file:
        assert file > 2
        (partial,) = directory.glob(".a.sif.*")
        partial.write_bytes(b"content")
    return path, events


@pytest.mark.parametrize(
    ("storage", "options"),
    [
        ("{stripe_count: 8}", "-c 8"),
        ("{stripe_count: all}", "-c -1"),
        ("{stripe_bytes: 4194304}", "-S 4194304"),
        ("{stripe_count: 4, stripe_bytes: 1048576}", "-c 4 -S 1048576"),
    ],
)
def test_stripes_are_set_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, options: str
) -> None:
    log = lustre(tmp_path, monkeypatch)
    path, events = written(tmp_path, storage)
    assert log.read_text().startswith(f"setstripe {options} -- {tmp_path}/.a.sif.")
    assert path.read_bytes() == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert events == []


def test_nothing_is_asked_without_stripes_or_lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = lustre(tmp_path, monkeypatch)
    written(tmp_path, "{}")
    monkeypatch.undo()
    assert quota.mount_of(tmp_path) is not None
    written(tmp_path, "{stripe_count: 8}")
    assert log.read_text() == ""


@pytest.mark.parametrize(
    ("lfs", "problem"),
    [
        (None, "`lfs` is not on this machine"),
        ("#!/bin/sh\n", "`lfs setstripe` made no file"),
        (
            '#!/bin/sh\n: >"$5"\necho "setstripe: Invalid argument" >&2\nexit 22\n',
            "`lfs setstripe -c 8` fails: setstripe: Invalid argument",
        ),
    ],
)
def test_an_image_is_never_lost_for_its_stripes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lfs: str | None, problem: str
) -> None:
    lustre(tmp_path, monkeypatch, lfs=lfs)
    path, events = written(tmp_path, "{stripe_count: 8}")
    assert path.read_bytes() == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    (warning,) = events
    assert isinstance(warning, Warned)
    assert warning.text == f"the image gets the stripes of `{tmp_path}`: {problem}"


def test_an_error_leaves_no_striped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = lustre(tmp_path, monkeypatch)
    create = striped(site("{stripe_count: 8}"), lambda _: None)
    with pytest.raises(KeyError), atomic_file(tmp_path / "a.sif", create=create):
        raise KeyError
    assert log.read_text()
    assert not list(tmp_path.glob("*a.sif*"))
