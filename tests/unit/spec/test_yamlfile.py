"""YAML is read alike with and without libyaml."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from envbuild.errors import EnvbuildError
from envbuild.spec import yamlfile

ROOT = Path(__file__).resolve().parents[3]
FILES = [
    path
    for directory in ("envbuild/rules", "recipes", "base-images", "sites", "examples")
    for path in sorted((ROOT / directory).rglob("*.yaml"))
]


@pytest.fixture
def without_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    assert yamlfile._Loader is yaml.CSafeLoader
    monkeypatch.setattr(yamlfile, "_Loader", yaml.SafeLoader)


def test_files_of_the_repository_are_read_alike(request: pytest.FixtureRequest) -> None:
    files = [path for path in FILES if path.stat().st_size < 8000]
    assert len(files) > 20
    expected = [yamlfile.read_yaml(path.read_bytes(), path) for path in files]
    request.getfixturevalue("without_libyaml")
    assert [yamlfile.read_yaml(path.read_bytes(), path) for path in files] == expected


@pytest.mark.parametrize(
    "text",
    [
        "a: b: c\n",
        "a: [b\n",
        "a: {b: c\n",
        'a: "b\n',
        'a: "\\d"\n',
        'a: "\\xq"\n',
        "a: @b\n",
        "a: `b`\n",
        "a: b\nc\n",
        "- a\nb: c\n",
        "a: b\n  c: d\n",
        "a:\n  - b\n c: d\n",
        "a: *b\n",
        "&a a: !!int 1\n",
        "a: 1\na: 2\n",
        "{a: b}: c\n",
        "? [a]\n: b\n",
        "a: b\n---\nc: d\n",
        "%YAML 3.0\n---\na: b\n",
        "a:\n",
        "---\n",
        "- a\n",
    ],
)
def test_errors_are_alike(text: str, request: pytest.FixtureRequest) -> None:
    expected = errors(text)
    assert expected
    request.getfixturevalue("without_libyaml")
    assert errors(text) == expected


def errors(text: str) -> list[str]:
    """Return the errors of a text, with their lines."""
    path = Path("spec.yaml")
    try:
        collected = yamlfile.read_yaml(text.encode(), path).errors
    except EnvbuildError as raised:
        collected = [*raised.each()]
    return [f"{error.at.line if error.at else 0}: {error.problem}" for error in collected]


@pytest.mark.usefixtures("without_libyaml")
@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"\n', "%YAML 1." + "9" * 5000 + "\n---\na: b\n"])
def test_what_only_libyaml_checks_is_an_error_without_it(text: str) -> None:
    assert errors(text) == ["0: the file is not YAML"]
