"""Which base image a spec without one gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.errors import Location
from envbuild.spec.base import BaseImage, BasePython, BaseRoot
from envbuild.spec.load import Loaded, load
from envbuild.spec.model import Choice
from envbuild.spec.recipe import BaseRequirement
from envbuild.spec.select import (
    BaseConstraint,
    first_fitting_base,
    has_python,
    newest_of_distribution,
    no_fitting_base,
)
from envbuild.spec.yamlfile import Document
from tests.support.resolved_specs import base_image

HERE = Location(path=Path("spec.yaml"))


def loaded(name: str, version: str, python: str, **more: Any) -> Loaded[BaseImage]:
    abi = "cp" + python.replace(".", "")
    image = base_image(name=name, version=version, python=BasePython(version=python, abi=abi), **more)
    return Loaded(value=image, document=Document(path=Path(f"{name}.yaml")))


OLD = loaded("old", "11", "3.9", suite="bullseye", glibc="2.31", frozen="its support ended")
USUAL = loaded("usual", "12", "3.11", preferred=True, architectures=("amd64", "arm64"))
NEWER = loaded("newer", "13", "3.13", glibc="2.41")
TWIN = loaded("a-twin", "13", "3.13", glibc="2.41")
BASES = (OLD, NEWER, USUAL, TWIN)


def need(**wanted: Any) -> BaseConstraint:
    return BaseConstraint(by="it", at=HERE, requirement=BaseRequirement(**wanted))


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ([], "usual"),
        ([{"python": ">=3.9"}], "usual"),
        ([{"python": ">=3.12"}], "a-twin"),
        ([{"python": "3.9"}], "old"),
        ([{"suites": ("bullseye", "buster")}], "old"),
        ([{"glibc": "2.36"}], "usual"),
        ([{"glibc": "2.37"}], "a-twin"),
        ([{"python": "<3.12"}, {"python": "!=3.11.*"}], "old"),
        ([{"python": "<3.9.5"}, {"python": ">=3.9.2"}], "old"),
        ([{"python": "<3.9"}], None),
        ([{"python": "3.9"}, {"glibc": "2.36"}], None),
    ],
)
def test_the_first_that_meets_every_need(wanted: list[dict[str, Any]], name: str | None) -> None:
    needs = [need(**each) for each in wanted]
    for bases in (BASES, BASES[::-1]):
        found = first_fitting_base(needs, bases, "amd64")
        assert (found.value.name if found else None) == name


def test_only_one_for_this_architecture() -> None:
    assert first_fitting_base([], BASES, "arm64") == USUAL
    assert first_fitting_base([need(python=">=3.12")], BASES, "arm64") is None


def test_the_newest_of_a_distribution() -> None:
    assert newest_of_distribution(Choice(name="debian", constraint="<13"), BASES) == USUAL
    assert newest_of_distribution(Choice(name="debian", constraint=">=12"), BASES) == TWIN
    assert newest_of_distribution(Choice(name="debian", constraint=">13"), BASES) is None
    assert newest_of_distribution(Choice(name="other"), BASES) is None


def test_only_the_minor_release_of_a_base_is_known() -> None:
    assert has_python(USUAL.value, ">=3.11.4,<3.12")
    assert not has_python(USUAL.value, ">=3.12")


@pytest.mark.parametrize("needs", [[], [need(python=">=3.11")]])
def test_no_base_image_for_this_architecture_is_the_reason_told(needs: list[BaseConstraint]) -> None:
    (told,) = no_fitting_base(needs, BASES, "riscv64")
    assert told.each()[0].problem == "no base image is made for riscv64"


def test_requirements_that_no_base_image_meets_together() -> None:
    bases = [loaded("a", "1", "3.11"), loaded("b", "2", "3.12"), loaded("c", "3", "3.13")]
    needs = [need(python="!=3.11.*"), need(python="!=3.12.*"), need(python="!=3.13.*")]
    (error,) = no_fitting_base(needs, bases, "amd64")
    assert error.each()[0].problem.startswith("no base image is right for all: ")


def test_a_finished_root_is_never_taken_by_itself() -> None:
    root = BaseRoot(kind="tar", place="root.tar", sha256="0" * 64)
    value = BaseImage(**{**NEWER.value.model_dump(by_alias=True, exclude={"origins"}), "root": root})
    finished = Loaded(value=value, document=Document(path=Path("newer.yaml")))
    assert first_fitting_base([need(python=">=3.12")], [NEWER], "amd64") == NEWER
    assert first_fitting_base([need(python=">=3.12")], [finished], "amd64") is None


EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "base-images").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_of_a_finished_root_is_right_but_for_its_digest(path: Path) -> None:
    base = load(BaseImage, path.read_bytes(), path).value
    assert base.name == path.stem
    assert base.root == BaseRoot(kind="oci", place=path.stem, sha256="0" * 64)
    assert base.untried, "nobody has built on it"


def test_there_are_examples_of_finished_roots() -> None:
    assert {path.stem for path in EXAMPLES} == {"ubuntu-24.04", "rocky-9", "sles-15"}


@pytest.mark.parametrize(("version", "abi"), [("3.6", "cp37m"), ("3.7", "cp36m"), ("3.60", "cp30")])
def test_a_python_whose_modules_cannot_be_compiled_is_refused(version: str, abi: str) -> None:
    with pytest.raises(ValidationError, match=r"2\.7, or 3\.7 or newer|an ABI tag"):
        BasePython(version=version, abi=abi)
    assert BasePython(version="3.7", abi="cp37m")
