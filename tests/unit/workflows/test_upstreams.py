"""Which stores of others a run takes layers from: config.yaml and `--upstream`."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.events import Event, Warned
from envbuild.store.store import Store
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import with_upstreams
from tests.support.stores import key, layer


@pytest.fixture
def theirs(tmp_path: Path) -> Store:
    store = Store(tmp_path / "theirs")
    layer(store, "a")
    return store


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def settings(tmp_path: Path, events: list[Event]) -> Settings:
    return Settings(store=Store(tmp_path / "ours"), emit=events.append)


def text(path: Path, owner: str) -> str:
    return f"upstreams: [{{path: {path}, owner: '{owner}'}}]\n"


def test_the_users_file_names_one(theirs: Store, settings: Settings, config: Path) -> None:
    config.write_text(text(theirs.path, getpass.getuser()))
    assert with_upstreams(settings).store.get(key("a")) == theirs.get(key("a"))


@pytest.mark.parametrize(
    ("owner", "problem"), [("nobody-here", "is not an account here: `nobody-here`"), ("12345", "belongs to")]
)
def test_one_that_cannot_be_used_is_a_warning(
    theirs: Store, settings: Settings, config: Path, events: list[Event], owner: str, problem: str
) -> None:
    config.write_text(text(theirs.path, owner))
    assert with_upstreams(settings).store.get(key("a")) is None
    (warning,) = events
    assert isinstance(warning, Warned)
    assert problem in warning.text


def test_one_that_is_named_on_the_command_line_must_work(
    theirs: Store, settings: Settings, tmp_path: Path, config: Path
) -> None:
    assert with_upstreams(settings, [theirs.path]).store.get(key("a")) == theirs.get(key("a"))
    with pytest.raises(RequestError, match="is not a store"):
        with_upstreams(settings, [tmp_path])
