"""The first spec that `envbuild init` writes builds, and its image passes."""

import json
from pathlib import Path

from tests.integration.conftest import Desk


def test_the_first_spec_builds_and_its_image_talks(desk: Desk, image: Path) -> None:
    desk.envbuild("init", "first")
    desk.envbuild("build", "first/spec.yaml")
    report = json.loads(desk.envbuild("test", "first/spec.sif", "--ranks", "2", "--json").stdout)
    assert report["passed"] is True
    # It is the main job but for a package: what that has built is there.
    assert image.stat().st_size > (desk.place / "first/spec.sif").stat().st_size
