"""A command opens an image once, and works on what it opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

from envbuild.extend.request import ExtendRequest
from envbuild.workflows.check import check_image
from envbuild.workflows.export import export_image
from envbuild.workflows.extend import extend_image
from envbuild.workflows.images import named_images
from envbuild.workflows.inspect import inspect_image
from envbuild.workflows.module import InstallRequest, install_module
from envbuild.workflows.sbom import write_sbom
from envbuild.workflows.settings import Settings
from envbuild.workflows.status import statuses
from tests.support.small_images import BASE, small_image

_opened: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


# A hook cannot be removed: it looks at nothing but while a test says so.
sys.addaudithook(_note)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The paths that Python opens during the test."""
    global _opened  # noqa: PLW0603
    _opened = []
    yield _opened
    _opened = None


COMMANDS: dict[str, Callable[[Path, Settings], object]] = {
    "extend": lambda image, settings: extend_image(
        ExtendRequest(image=image, output=image.with_name("new.sif"), environment=["A=b"]), settings
    ),
    "check": check_image,
    "inspect": inspect_image,
    "status": lambda image, settings: statuses(named_images(settings, [image]), settings),
    "sbom": lambda image, _: write_sbom(image, None),
    "export": lambda image, settings: export_image(image, "squashfs", image.with_name("x"), settings.emit),
    "module": lambda image, settings: install_module(
        InstallRequest(image=image, root=image.with_name("modules")), settings
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_opens_its_image_once(command: str, tmp_path: Path, opened: list[str]) -> None:
    image = small_image(tmp_path, BASE, name="image.sif")
    if command == "extend":
        image = tmp_path / "image.sif-0.sqfs"  # what another tool made
    opened.clear()
    COMMANDS[command](image, Settings.of(store=tmp_path / "store"))
    # A call of open() that has an opener is told twice, one after the other.
    assert [path for path, _ in groupby(opened)].count(str(image)) == 1
