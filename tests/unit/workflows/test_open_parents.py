"""A build warns of a store that others can rename or remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.events import Event, Warned
from envbuild.store.store import Store
from envbuild.workflows.build import BuildRequest, build_image
from envbuild.workflows.settings import Settings


def test_a_build_warns_of_a_directory_that_others_can_write_to(public: Path) -> None:
    project, events = public / "project", list[Event]()
    project.mkdir()
    project.chmod(0o2770)
    spec = public / "x.yaml"
    spec.write_text("nonsense: 1\n")
    with pytest.raises(EnvbuildError):
        build_image(BuildRequest(spec=spec), Settings(store=Store(project / "store"), emit=events.append))
    warning = events[0]
    assert isinstance(warning, Warned)
    assert f"others can write to `{project}`" in warning.text
