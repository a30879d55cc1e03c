"""Newer releases that are not taken are warned of."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.mirrors import (
    write_dated_page,
    write_wheel,
)
from tests.support.resolve_desk import Desk, versions


def dated(desk: Desk, name: str, releases: dict[str, str], **requires: Sequence[str]) -> None:
    """Put wheels of a distribution into the index: version → when it appeared."""
    wheels = {
        write_wheel(desk.wheels, name, version, requires=requires.get(f"v{version[0]}", ())): uploaded
        for version, uploaded in releases.items()
    }
    write_dated_page(desk.server.root, name, wheels)


def test_a_release_much_older_than_the_newest_is_warned_of_with_the_reason(desk: Desk) -> None:
    desk.archive_only("source-only")
    dated(desk, "vision", {"1.0": "2021-01-01", "2.0": "2023-01-01"}, v2=["source-only"])
    lock = desk.lock(desk.resolved(python=["vision"]))
    assert versions(lock)["vision"] == "1.0"
    assert desk.warnings() == ["`vision` is at 1.0, much older than the newest release, 2.0"]
    assert "`from_source: [source-only]` under `packages`" in str(desk.hints()[0])
    assert "with 2.0: `source-only`: no wheel" in desk.details()[0]
    # What the lock keeps was said once; what a request excludes is asked for.
    desk.lock(desk.resolved(python=["vision", "alpha"]), lock)
    assert desk.warnings() == []
    desk.lock(desk.resolved(python=["vision<2"]))
    assert desk.warnings() == []


def test_an_old_release_that_other_packages_ask_for_is_warned_of_with_their_cost(desk: Desk) -> None:
    dated(desk, "vision", {"1.0": "2021-01-01", "2.0": "2023-01-01"})
    dated(desk, "model", {"3.0": "2020-01-01", "4.0": "2020-02-01"}, v4=["vision<2"])
    assert versions(desk.lock(desk.resolved(python=["model", "vision"])))["vision"] == "1.0"
    (detail,) = desk.details()
    assert detail.startswith("with 2.0: `model` 3.0 instead of 4.0; ")
    assert str(desk.hints()[0]).startswith("`vision==2.0` asks for that")


def test_a_release_a_little_older_than_the_newest_is_none_to_warn_of(desk: Desk) -> None:
    desk.archive_only("source-only")
    dated(desk, "vision", {"1.0": "2022-06-01", "2.0": "2023-01-01"}, v2=["source-only"])
    assert versions(desk.lock(desk.resolved(python=["vision"])))["vision"] == "1.0"
    assert desk.warnings() == []


def test_a_release_that_has_sources_alone_is_the_newest_all_the_same(desk: Desk) -> None:
    wheel = write_wheel(desk.wheels, "vision", "1.0")
    archive = desk.directory / "vision-2.0.tar.gz"
    archive.write_bytes(b"not even an archive")
    write_dated_page(desk.server.root, "vision", {wheel: "2021-01-01", archive: "2023-01-01"})
    assert versions(desk.lock(desk.resolved(python=["vision"])))["vision"] == "1.0"
    (detail,) = desk.details()
    assert "with 2.0: `vision`: no wheel fits" in detail


def test_a_pre_release_that_nothing_asks_for_is_warned_of(desk: Desk) -> None:
    desk.archive_only("source-only")
    dated(desk, "hydra", {"1.0": "2023-01-01", "2.0rc1": "2023-02-01"}, v1=["source-only"])
    dated(desk, "model", {"1.0": "2023-01-01"}, v1=["hydra"])
    assert versions(desk.lock(desk.resolved(python=["model"])))["hydra"] == "2.0rc1"
    assert desk.warnings() == ["`hydra` is at 2.0rc1, a pre-release that nothing asks for; the newest is 1.0"]
    assert "with 1.0: `source-only`: no wheel" in desk.details()[0]
    desk.lock(desk.resolved(python=["model", "hydra>=2.0rc1"]))
    assert desk.warnings() == []
