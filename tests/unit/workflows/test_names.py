"""Names that become paths: kernels, modules, recipes and sites stay in the directory meant for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.activate.layout import parse_module
from envbuild.errors import RequestError
from envbuild.store.store import Store
from envbuild.workflows.kernel import write_kernel
from envbuild.workflows.recipe_new import new_recipe
from envbuild.workflows.settings import Settings
from envbuild.workflows.sites import name_of_output

BAD = (
    "",
    ".",
    "..",
    "../x",
    "a/../../x",
    "/x",
    "-x",
    ".x",
    "a b",
    "a\n",
    "a\tb",
    "a\0b",
    "\u202ea",
    "a" * 129,
)


def kernel(directory: Path, name: str) -> object:
    settings = Settings(store=Store(directory / "store"))
    return write_kernel("image.sif", root=None, prefix=directory, name=name, settings=settings)


def recipe(directory: Path, name: str) -> object:
    return new_recipe(name, "1.0", directory / "recipes")


def module(directory: Path, name: str) -> object:
    return parse_module(f"{name}/1")


def version(directory: Path, name: str) -> object:
    return parse_module(f"demo/{name}")


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("make", [kernel, recipe, module, version])
def test_a_name_that_is_none_is_refused(
    make: Callable[[Path, str], object], name: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=r"cannot name|is not a valid|names no module"):
        make(tmp_path, name)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["-x", ".x", "a b", "a\n", "A", "\u202ea", "a" * 129])
def test_the_stem_of_a_sites_file_is_a_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be a site's file"):
        name_of_output(tmp_path / f"{name}.yaml")
    assert [*tmp_path.iterdir()] == []
