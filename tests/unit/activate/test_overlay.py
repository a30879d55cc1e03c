"""Who is warned that a machine's settings forbid overlay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.activate.overlay import overlay_warning
from envbuild.image.model import Manifest
from envbuild.system.apptainer import Apptainer


def stand_in(tmp_path: Path, setting: str) -> Apptainer:
    (tmp_path / "a.conf").write_text(f"enable overlay = {setting}\n")
    program = tmp_path / "apptainer"
    program.write_text(f"#!/bin/sh\necho APPTAINER_CONF_FILE={tmp_path}/a.conf\n")
    program.chmod(0o755)
    return Apptainer(program=program, version="1.4.5")


@pytest.mark.parametrize(("setting", "warned"), [("no", True), ("yes", False), ("", False)])
def test_a_layered_image_is_warned_of_where_overlay_is_off(
    tmp_path: Path, manifest: Callable[..., Manifest], setting: str, warned: bool
) -> None:
    found = overlay_warning(manifest(), stand_in(tmp_path, setting))
    assert (found is not None and "--flat" in found) == warned


def test_a_flat_image_needs_none(tmp_path: Path, manifest: Callable[..., Manifest]) -> None:
    flat = manifest(parts=manifest().parts[:1])
    assert overlay_warning(flat, stand_in(tmp_path, "no")) is None
