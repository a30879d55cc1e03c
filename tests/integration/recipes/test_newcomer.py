"""A newcomer's recipe, from `recipes new` to controls that run in its image, with what is installed alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Desk


@pytest.fixture(scope="module")
def untouched(desk: Desk, small_image: Path) -> Path:
    """Write and build a recipe over a store that holds its base and MPI; return its directory."""
    said = desk.envbuild("recipes", "new", "tabulate", "0.9.0", "--dir", "ours").stderr
    assert said.splitlines()[0] == "tabulate 0.9.0: a wheel for Python 3.9, 3.11 and 3.13"
    assert said.splitlines()[3] == "  envbuild build ours/tabulate/example.yaml --recipes ours"
    desk.envbuild("build", "ours/tabulate/example.yaml", "--recipes", "ours")
    return desk.place / "ours/tabulate"


@pytest.fixture(scope="module")
def recipe(desk: Desk, untouched: Path) -> Path:
    """Write the README and the job of the recipe, and build it again; return its directory."""
    desk.write("ours/tabulate/README.md", "# tabulate\n\nA sum, no more.\n")
    job = untouched / "verify/sums.py"
    job.write_text(job.read_text().replace(", still_the_template=True", ""))
    desk.envbuild("build", "ours/tabulate/example.yaml", "--recipes", "ours")
    return untouched


def check(desk: Desk, *words: str | Path, code: int = 0) -> str:
    return desk.envbuild("recipes", "check", "tabulate", "--recipes", "ours", *words, code=code).stdout


@pytest.mark.slow  # test_it_passes_once_it_is_written has the rest
def test_an_untouched_template_is_skipped_and_refused(desk: Desk, untouched: Path) -> None:
    done = desk.envbuild("test", untouched / "example.sif", "--ranks", "2", "--json")
    findings = {found["id"]: found for found in json.loads(done.stdout)["findings"]}
    job = {name: found["status"] for name, found in findings.items() if name.startswith("tabulate.sums/")}
    assert job == {"tabulate.sums/template": "SKIP"}
    assert findings["tabulate.sums/template"]["observed"] == "still the template"
    inside: list[str | Path] = ["apptainer", "test", untouched / "example.sif", "--ranks", "2"]
    assert "SKIP tabulate.sums" in desk.run(inside).stdout
    told = desk.envbuild("recipes", "check", "tabulate", "--recipes", "ours", code=2).stderr
    assert told.count("error: this section is still empty") == 2
    assert told.count("hint: write it in place of `…`") == 2
    assert told.count("error: this job is still the template") == 1


def test_it_passes_once_it_is_written(desk: Desk, recipe: Path) -> None:
    report = json.loads(desk.envbuild("test", recipe / "example.sif", "--ranks", "2", "--json").stdout)
    assert report["passed"] is True
    (found,) = [each for each in report["findings"] if each["id"] == "tabulate.sums/sum"]
    assert (found["status"], found["expected"], found["observed"]) == ("PASS", "3", "3")


def test_the_controls_of_a_written_recipe_run(desk: Desk, recipe: Path) -> None:
    assert check(desk) == "tabulate: keeps the rules; 1 job, 2 controls\n"
    seen = check(desk, "--image", recipe / "example.sif").splitlines()
    assert seen[1:] == ["SEEN  tabulate.sums: every rank alone", "SEEN  tabulate.sums: own number alone"]


@pytest.mark.slow  # unit/workflows has the verdict
def test_a_control_that_spoils_nothing_is_a_miss(desk: Desk, recipe: Path) -> None:
    job, image = recipe / "verify/sums.py", recipe / "harmless.sif"
    text = job.read_text()
    try:
        job.write_text(text.replace("total = comm.rank + 1", "total = comm.allreduce(comm.rank + 1)"))
        # The mark is in a file of the image.
        desk.envbuild("build", recipe / "example.yaml", "--recipes", "ours", "-o", image)
        found = json.loads(check(desk, "--image", image, "--json", code=4))
    finally:
        job.write_text(text)
    assert found["passed"] is False
    assert found["ran"]["tabulate.sums: every rank alone"] == []
    assert found["ran"]["tabulate.sums: own number alone"][0] == "tabulate.sums/sum did not fail"


def test_an_image_of_another_state_of_the_recipe_is_refused(desk: Desk, recipe: Path) -> None:
    job = recipe / "verify/sums.py"
    text = job.read_text()
    try:
        job.write_text(text + "# changed\n")
        told = desk.envbuild(
            "recipes", "check", "tabulate", "--recipes", "ours", "--image", recipe / "example.sif", code=2
        ).stderr
    finally:
        job.write_text(text)
    assert "the image holds another state of the recipe `tabulate`" in told
    other = desk.envbuild("recipes", "check", "spark", "--image", recipe / "example.sif", code=2).stderr
    assert "the image does not hold the recipe `spark`" in other


def test_a_shipped_recipe_keeps_the_rules_as_it_is_installed(desk: Desk) -> None:
    # All of them, from the checkout: tests/recipes.
    assert desk.envbuild("recipes", "check", "pytorch").stdout.startswith("pytorch: keeps the rules; ")


@pytest.mark.slow  # unit/workflows has the verdict
def test_a_site_that_forbids_an_image_fails_its_test_too(desk: Desk, recipe: Path) -> None:
    desk.write("elsewhere.yaml", "name: elsewhere\narchitecture: arm64\n")
    words: list[str | Path] = ["test", recipe / "example.sif", "--ranks", "2", "--json"]
    report = json.loads(desk.envbuild(*words, "--site", "elsewhere.yaml", code=4).stdout)
    failed = [found["id"] for found in report["findings"] if found["status"] == "FAIL"]
    assert failed == ["ARCH.same"]
    desk.write("here.yaml", "name: here\narchitecture: amd64\n")
    assert json.loads(desk.envbuild(*words, "--site", "here.yaml").stdout)["passed"] is True
