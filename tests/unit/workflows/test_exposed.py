"""A store that everybody may write to is told of before anything is taken from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.events import Event, Warned
from envbuild.store.store import Store
from envbuild.workflows.build import build_image
from envbuild.workflows.exposed import exposed
from envbuild.workflows.settings import Settings


def test_a_build_tells_it_first(tmp_path: Path) -> None:
    store, events = Store(tmp_path / "a store"), list[Event]()
    assert exposed(store) == (), "there is none yet"
    store.root.mkdir()
    store.root.chmod(0o777)
    spec = tmp_path / "x.yaml"
    spec.write_text("nonsense: 1\n")
    with pytest.raises(EnvbuildError):
        build_image(spec, Settings(store=store, emit=events.append))
    (warning, *_) = events
    assert isinstance(warning, Warned)
    assert warning in exposed(store)
    assert warning.hint == f"`chmod -R o-w '{store.root}'`"
