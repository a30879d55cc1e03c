"""A build warns of a store that others can rename or remove."""

from __future__ import annotations

from pathlib import Path

from envbuild.events import Event, Warned
from envbuild.store.store import Store
from envbuild.workflows.build import BuildRequest, build_images
from envbuild.workflows.members import Members
from envbuild.workflows.settings import Settings


def test_a_build_warns_of_a_directory_that_others_can_write_to(public: Path) -> None:
    project, events = public / "project", list[Event]()
    project.mkdir()
    project.chmod(0o2770)
    spec = public / "x.yaml"
    spec.write_text("nonsense: 1\n")
    settings = Settings(store=Store(project / "store"), emit=events.append)
    images = build_images(Members.of([spec], many=False), BuildRequest(), settings)
    assert images.failed
    warning = events[0]
    assert isinstance(warning, Warned)
    assert f"others can write to `{project}`" in warning.text
