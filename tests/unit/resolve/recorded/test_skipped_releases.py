"""Newer releases that are not taken: an error for want of a wheel, else a warning."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from envbuild.errors import EnvbuildError
from tests.support.mirrors import digest, write_dated_page, write_wheel
from tests.support.resolve_desk import Desk, versions


def dated(desk: Desk, name: str, releases: dict[str, str], **requires: Sequence[str]) -> None:
    """Put wheels of a distribution into the index: version → when it appeared."""
    wheels = {
        write_wheel(desk.wheels, name, version, requires=requires.get(f"v{version[0]}", ())): uploaded
        for version, uploaded in releases.items()
    }
    write_dated_page(desk.server.root, name, wheels)


def refused(desk: Desk, *python: str) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        desk.lock(desk.resolved(python=python))
    (error,) = caught.value.each()
    return error


def test_a_release_much_older_than_the_newest_is_not_taken_for_want_of_a_wheel(desk: Desk) -> None:
    desk.archive_only("source-only")
    dated(desk, "vision", {"1.0": "2021-01-01", "2.0": "2023-01-01"}, v2=["source-only"])
    error = refused(desk, "vision")
    assert error.problem.startswith("`vision`: no wheel of a recent release fits Python 3.11")
    assert ": 2.0 needs `source-only`, without a wheel, and 1.0 is much older" in error.problem
    assert "`from_source: [source-only]` under `packages`" in str(error.hint)
    assert str(error.hint).endswith("; `vision==1.0` accepts the old release")
    lock = desk.lock(desk.resolved(python=["vision==1.0"]))
    assert versions(lock)["vision"] == "1.0"
    # What a lock has was asked for once, and so is what a request excludes.
    desk.lock(desk.resolved(python=["vision", "alpha"]), lock)
    desk.lock(desk.resolved(python=["vision<2"]))
    assert desk.warnings() == []


def test_all_that_lacks_a_wheel_is_one_error_with_who_asks(desk: Desk) -> None:
    desk.archive_only("source-only")
    desk.archive_only("only-archive")
    dated(desk, "vision", {"1.0": "2021-01-01", "2.0": "2023-01-01"}, v2=["source-only"])
    dated(desk, "deep", {"1.0": "2023-01-01"}, v1=["only-archive"])
    dated(desk, "model", {"1.0": "2023-01-01"}, v1=["deep"])
    error = refused(desk, "model", "vision")
    assert error.problem.startswith("`only-archive`, `vision`: no wheel fits Python 3.11")
    assert "\n  `only-archive`, which `deep` needs, which `model` at spec.yaml" in error.problem
    assert "2.0 needs `source-only`, without a wheel, and 1.0 is much older" in error.problem
    assert "`from_source: [only-archive, source-only]` under `packages`" in str(error.hint)


def test_an_old_release_that_another_package_needs_is_not_taken_for_want_of_a_wheel(desk: Desk) -> None:
    wheel = write_wheel(desk.wheels, "vision", "1.0")
    archive = desk.directory / "vision-2.0.tar.gz"
    archive.write_bytes(b"not even an archive")
    write_dated_page(desk.server.root, "vision", {wheel: "2021-01-01", archive: "2023-01-01"})
    dated(desk, "model", {"1.0": "2023-01-01"}, v1=["vision"])
    error = refused(desk, "model")
    assert "`vision`, which `model` at spec.yaml" in error.problem
    assert " needs: 2.0 has no wheel, and 1.0 is much older" in error.problem
    # Another package that bounds it asks for it.
    dated(desk, "model", {"1.0": "2023-01-01"}, v1=["vision<2"])
    assert versions(desk.lock(desk.resolved(python=["model"])))["vision"] == "1.0"


def test_a_release_of_unknown_age_is_judged_by_its_number(desk: Desk) -> None:
    desk.index(small="0.3.1")
    archive = desk.server.root / "files/small-2.0.tar.gz"
    archive.write_bytes(b"not even an archive")
    page = desk.server.root / "simple/small/index.html"
    page.write_text(
        page.read_text() + f'<a href="/files/{archive.name}#sha256={digest(archive)}">{archive.name}</a>'
    )
    assert "2.0 has no wheel, and 0.3.1 is much older" in refused(desk, "small").problem


def test_what_has_only_a_placeholder_or_pre_releases_is_warned_of(desk: Desk) -> None:
    dated(desk, "held", {"0.0.1": "2023-01-01"})
    dated(desk, "young", {"1.0b1": "2022-01-01", "1.0b2": "2023-01-01"})
    desk.lock(desk.resolved(python=["held", "young"]))
    assert desk.warnings() == [
        "`held` is at 0.0.1, its newest release: that is often a placeholder for a name",
        "`young` is at 1.0b2, a pre-release, as all its releases are",
    ]
    desk.lock(desk.resolved(python=["held==0.0.1", "young>=1.0b1"]))
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
    error = refused(desk, "vision")
    assert ": 2.0 has no wheel, and 1.0 is much older" in error.problem
    assert "`from_source: [vision]`" in str(error.hint)


def test_a_pre_release_that_nothing_asks_for_is_not_taken_for_want_of_a_wheel(desk: Desk) -> None:
    desk.archive_only("source-only")
    dated(desk, "hydra", {"1.0": "2023-01-01", "2.0rc1": "2023-02-01"}, v1=["source-only"])
    dated(desk, "model", {"1.0": "2023-01-01"}, v1=["hydra"])
    error = refused(desk, "model")
    assert "`hydra`, which `model` at spec.yaml" in error.problem
    assert " needs: 1.0 needs `source-only`, without a wheel, and 2.0rc1 is a pre-release" in error.problem
    desk.lock(desk.resolved(python=["model", "hydra>=2.0rc1"]))
    assert desk.warnings() == []
