"""The real apt: signatures of archives, lists without a network, commands at once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.resolve.aptsources import AptSource
from envbuild.resolve.origins import Machine
from envbuild.spec.base import BaseImage
from tests.support.resolve_desk import Desk
from tests.support.resolved_specs import base_image

SIGNED = Path(__file__).parent / "signed-archive"


def test_commands_at_once_over_one_store_all_succeed(desk: Desk) -> None:
    """Without a turn for each, apt refuses all but one: it does not wait for its own lock."""
    texts = ["git", "less", "nano", "vim"]

    def lock(name: str) -> set[str]:
        return {pin.name for pin in desk.lock(desk.resolved(python=["alpha"], system=[name])).system_debs}

    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(lock, texts))
    assert found == [{"git", "libcurl"}, {"less"}, {"nano"}, {"vim"}]


def test_package_lists_that_were_here_once_are_enough_without_a_network(desk: Desk) -> None:
    """From whichever address they came."""
    spec = desk.resolved(system=["git"])
    source = desk.machine().apt[0]
    two = replace(desk.machine(), apt=(replace(source, uris=("http://127.0.0.1:1/debian",)), source))
    lock = desk.lock(spec, machine=two)
    assert any("the next" in str(event) for event in desk.events)
    desk.server.requests.clear()
    assert desk.lock(spec, offline=True, machine=two) == lock
    assert desk.server.requests == []


def signed_base() -> BaseImage:
    return base_image(suite="stable", origins=("debian:stable",), packages=("apt",))


def signed_machine(directory: Path) -> Machine:
    source = AptSource(
        uris=(f"file://{directory}",),
        suites=("stable",),
        components=("main",),
        signed_by=str(directory / "key.gpg"),
        trusted=False,
    )
    return Machine(apt=(source,))


def test_a_signed_archive_is_verified(desk: Desk) -> None:
    lock = desk.lock(desk.resolved(base=signed_base()), machine=signed_machine(SIGNED))
    assert [pin.name for pin in lock.base_debs] == ["apt", "small-base"]
    assert lock.base_debs[0].sha256 == "b" * 64


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("InRelease", "Origin: Test", "Origin: Evil"),
        ("main/binary-amd64/Packages", "a" * 64, "c" * 64),
        ("../../key.gpg", None, None),
    ],
)
def test_an_archive_that_was_tampered_with_is_refused(
    desk: Desk, file: str, old: str | None, new: str | None
) -> None:
    copy = desk.directory / "copy"
    shutil.copytree(SIGNED, copy)
    path = copy / "dists/stable" / file
    if old is None or new is None:
        path.write_bytes(b"")
    else:
        path.write_text(path.read_text().replace(old, new))
    error = desk.error(desk.resolved(base=signed_base()), machine=signed_machine(copy))
    assert isinstance(error, MachineError)
    assert error.problem.startswith("`debian:stable` at ")


def test_an_unsigned_archive_is_refused_unless_the_machine_trusts_it(desk: Desk) -> None:
    source = replace(desk.machine().apt[0], trusted=False)
    error = desk.error(desk.resolved(), machine=replace(desk.machine(), apt=(source,)))
    assert isinstance(error, MachineError)
    assert "is not signed" in error.problem
