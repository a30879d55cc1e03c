"""The reference of the files that people write: what the models say, and examples that the models take."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from envbuild.errors import EnvbuildError
from envbuild.inputs.spec import read_spec
from envbuild.lock import text as locktext
from envbuild.rules.knowledge import KnowledgeFile
from envbuild.spec.schema import MODELS
from envbuild.spec.yamlfile import read_yaml
from envbuild.workflows.schema import schema_text
from tests.support.schemas import complaints

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "setup"))

import reference  # noqa: E402

sys.path.remove(str(TOP / "setup"))

PAGES = (*(f"{page.name}.md" for page in reference.ALL), "oracles.md")
# Pages that are written by hand or by other commands.
OTHERS = (
    "benchmarks.md",
    "checks.md",
    "glossary.md",
    "json.md",
    "limits.md",
    "oracles.md",
    "results.md",
    "rules.md",
    "stability.md",
)
EXAMPLES = [(page.name, path) for page in reference.ALL for path in reference.examples(page)]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str, pages: dict[str, str], golden: Callable[[Path, str], None]) -> None:
    golden(reference.PAGES / name, pages[name])


def test_there_is_a_page_for_each_file_of_people_and_for_the_lock(pages: dict[str, str]) -> None:
    assert {f"{name}.md" for name in (*MODELS, "knowledge", "lock", "oracles")} == pages.keys() == {*PAGES}
    assert {path.name for path in reference.PAGES.glob("*.md")} == {*PAGES, "cli.md", *OTHERS}


def test_every_example_is_shown() -> None:
    assert {path for _, path in EXAMPLES} == set((reference.PAGES / "examples").iterdir())


@pytest.mark.parametrize(("name", "path"), EXAMPLES, ids=lambda value: getattr(value, "stem", value))
def test_an_example_keeps_to_its_model_and_schema(name: str, path: Path) -> None:
    document = read_yaml(path.read_bytes(), path)
    assert document.errors == []
    if name == "lock":
        lock = locktext.load(path.read_bytes(), path)
        assert locktext.load(locktext.dump(lock).encode(), path) == lock
    else:
        model: type[BaseModel] = KnowledgeFile if name == "knowledge" else MODELS[name]
        assert model.model_validate(document.value)
    value = json.loads(json.dumps(document.value))
    assert complaints(name, value) == []


def test_the_example_of_a_spec_names_what_there_is(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_bytes((reference.PAGES / "examples/spec.yaml").read_bytes())
    values = yaml.safe_load(spec.read_text())
    named = [entry["source"] for entry in values["files"]]
    named += [
        entry[key]
        for entry in values["packages"]["python"]
        for key in ("file", "wheel")
        if isinstance(entry, dict) and key in entry and "sha256" not in entry
    ]
    for name in named:
        source = tmp_path / name
        source.parent.mkdir(exist_ok=True)
        source.touch()
    assert read_spec(spec).site is not None


def test_an_example_that_is_wrong_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "lock.yaml"
    bad.write_text((reference.PAGES / "examples/lock.yaml").read_text().replace('sha256: "', 'sha256: "g'))
    with pytest.raises(EnvbuildError):
        test_an_example_keeps_to_its_model_and_schema("lock", bad)


@pytest.mark.parametrize("page", reference.ALL, ids=lambda page: page.name)
def test_an_example_has_every_key_and_the_page_tells_all_of_each(
    pages: dict[str, str], page: reference.Page
) -> None:
    values = [yaml.safe_load(path.read_text()) for path in reference.examples(page)]
    sections = {part.partition("\n")[0]: part for part in pages[f"{page.name}.md"].split("\n### ")[1:]}
    schema = json.loads(schema_text(page.name))
    keys = list(reference.keys(schema))
    assert list(sections) == [path for path, _, _ in keys]
    for path, entry, required in keys:
        written = [value for whole in values for value in reference.values_at(whole, path)]
        assert written != [], path
        said = sections[path]
        _, fence, shown = said.partition("```yaml\n")
        assert fence
        assert yaml.safe_load(shown.partition("```")[0]) in [
            {path.rpartition(".")[2]: value} for value in written
        ]
        assert entry["description"] in said
        assert ("**required**" in said) == required
        assert ("default: " in said) != required


def test_every_table_of_a_schema_is_gone_through() -> None:
    """A table that the walk does not reach would be missing on the page, too."""
    for page in reference.ALL:
        schema = json.loads(schema_text(page.name))
        told = [path for path, _, _ in reference.keys(schema)]
        tables = [schema, *schema.get("definitions", {}).values()]
        # Of a partition the sections have the keys of the site's: they are told once.
        distinct = {frozenset(table["properties"]) for table in tables}
        assert len(told) == len(set(told)) == sum(map(len, distinct))
