"""Every mistake that people make has a directory under tests/bad-specs and an exact text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from envbuild.errors import EnvbuildError, render
from envbuild.inputs import catalog, sites
from envbuild.inputs import spec as spec_reader
from envbuild.spec.base import BaseImage
from envbuild.spec.load import load
from envbuild.spec.recipe import Recipe
from envbuild.spec.site import Site
from envbuild.system import host

BAD = Path(__file__).parents[2] / "bad-specs"
CATALOG = Path(__file__).parent / "catalog"
CASES = sorted(path.name for path in BAD.iterdir())
ALONE: dict[str, type[BaseModel]] = {"recipe.yaml": Recipe, "base.yaml": BaseImage, "site.yaml": Site}


def read(case: Path) -> None:
    """Read what a case holds: a spec with what lies beside it, or one other file."""
    if (case / "spec.yaml").exists():
        recipes = [Path("recipes")] if (case / "recipes").is_dir() else []
        site = Path("site.yaml") if (case / "site.yaml").exists() else None
        spec_reader.read_spec(Path("spec.yaml"), recipes=recipes, site=site)
        return
    for name, model in ALONE.items():
        if (case / name).exists():
            load(model, (case / name).read_bytes(), Path(name))


@pytest.mark.parametrize("name", CASES)
def test_a_bad_spec_gets_its_exact_text(
    name: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BAD / name
    monkeypatch.chdir(case)
    monkeypatch.delenv("ENVBUILD_RECIPES", raising=False)
    monkeypatch.delenv("ENVBUILD_SITE", raising=False)
    monkeypatch.setattr(catalog, "configuration_homes", lambda: (Path("config"), CATALOG))
    monkeypatch.setattr(sites, "settings_homes", lambda: ())
    monkeypatch.setattr(host, "architecture", lambda: "amd64")
    with pytest.raises(EnvbuildError) as caught:
        read(case)
    text = render(caught.value)
    golden(case / "expected.txt", text)
    assert caught.value.exit_code == 2
    assert str(BAD) not in text
    # A mistake without a line would leave the search to the reader.
    assert all(error.at is not None for error in caught.value.each())


def test_there_are_cases_enough() -> None:
    assert len(CASES) >= 40
