"""`forecast` over a directory of images: facts are kept, and each image is listed or counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.preflight.image_facts import facts_text
from envbuild.rules.facts import Fact
from tests.support.elves import Elf
from tests.support.small_images import BASE, Layer, small_image

SITE = "name: here\narchitecture: amd64\nscheduler: {name: slurm, mpi_types: [pmix, pmi2]}\n"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A directory with an image on MPICH, one without an MPI, and a damaged one."""
    directory = tmp_path / "images"
    directory.mkdir()
    layer: Layer = {"/opt/mpi/lib/libmpi.so.12": Elf(soname="libmpi.so.12", defined=("MPI_Init",))}
    known: dict[str, Any] = {"mpi": "mpich", "mpi_family": "mpich", "recipes": {"mpich": "5.0.2"}}
    small_image(directory, BASE, layer, name="solver.sif", **known)
    small_image(directory, BASE, name="tools.sif", mpi="", mpi_family="", recipes={})
    (directory / "damaged.sif").write_bytes(b"no image")
    (tmp_path / "here.yaml").write_text(SITE)
    return tmp_path


def run(work: Path, *words: str) -> int:
    store = ["--store", str(work / "store"), "--all", str(work / "images")]
    with pytest.raises(SystemExit) as ended:
        main(["forecast", *store, *words])
    return int(ended.value.code or 0)


def at_site(work: Path) -> list[str]:
    return ["--site", str(work / "here.yaml")]


def states(document: Any) -> dict[str, list[str]]:
    return {image["name"]: [entry["state"] for entry in image["partitions"]] for image in document["images"]}


def test_a_change_breaks_the_image_that_needs_what_goes(
    modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = ["--change", "pmi.offered=pmix"]
    assert run(modules, *at_site(modules), *change, "--json") == 4
    document = json.loads(capsys.readouterr().out)
    assert document["breaks"] is True
    assert document["changes"] == [{"fact": "pmi.offered", "now": "pmix, pmi2", "then": "pmix"}]
    found = states(document)
    assert found["solver.sif"] == ["breaks"]
    assert found["damaged.sif"] == ["unknown"]
    (damaged,) = [image for image in document["images"] if image["name"] == "damaged.sif"]
    assert damaged["problem"]
    run(modules, *at_site(modules), *change)
    text = capsys.readouterr().out
    assert "pmi.offered: pmix, pmi2 -> pmix\n" in text
    assert "breaks   solver.sif   here  PMI.intersection: mpich 5.0.2 speaks pmi2" in text
    # The facts of the first run were kept.
    assert "for the first time" not in text
    assert "here: 1 breaks" in text


def test_facts_are_kept_by_check(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", str(modules / "images/solver.sif"), "--store", str(modules / "store")])
    run(modules, *at_site(modules), "--change", "scheduler.version=25.11.2")
    assert "1 image without facts scanned for the first time" in capsys.readouterr().out


def test_an_image_that_carries_facts_is_not_scanned(
    modules: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"mpi.family": Fact("mpich", "lock"), "mpi.version": Fact("5.0.2", "lock")}
    directory = modules / "carried"
    directory.mkdir()
    small_image(directory, BASE, name="solver.sif", facts=facts_text(facts))
    monkeypatch.setattr("envbuild.preflight.image_facts.scan_image", None)
    words = ["--store", str(modules / "another-store"), "--all", str(directory), *at_site(modules)]
    with pytest.raises(SystemExit) as ended:
        main(["forecast", *words, "--change", "pmi.offered=pmix"])
    out = capsys.readouterr().out
    assert (ended.value.code, "scanned" in out) == (4, False)
    assert "repair: a change of the spec, or `envbuild lock SPEC --upgrade`, and `envbuild build SPEC`" in out
    assert "changes: mpi\n" in out
    with pytest.raises(SystemExit):
        main(["explain", str(directory / "solver.sif"), *words[:2], *at_site(modules)])
    assert "mpi.version = 5.0.2 (lock)" in capsys.readouterr().out


def test_the_page_is_written(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = modules / "page.html"
    assert run(modules, *at_site(modules), "--change", "pmi.offered=pmix", "--html", str(page)) == 4
    assert "solver.sif" in page.read_text()
    assert "here: 1 breaks" in capsys.readouterr().out


def test_all_errors_come_at_once(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (modules / "then.yaml").write_text(SITE + "glibc: {}\n")
    words = ["--all", "/nowhere", "--all", "/not/there", "--change", "driver.version=new"]
    words += ["--site", str(modules / "none.yaml"), "--then", str(modules / "then.yaml")]
    assert run(modules, *words) == 2
    err = capsys.readouterr().err
    for text in ("`/nowhere`", "`/not/there`", "driver.version=new", "none.yaml", "then.yaml"):
        assert text in err


def test_a_directory_without_images_is_named(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (modules / "empty").mkdir()
    change = ["--all", str(modules / "empty"), "--change", "pmi.offered=pmix,pmi2"]
    assert run(modules, *at_site(modules), *change) == 0
    said = capsys.readouterr()
    assert f"there are no images in `{modules}/empty`" in said.err
    assert "nothing that is known of the site changes\n" in said.out


def test_a_site_as_it_will_be(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (modules / "then.yaml").write_text(SITE.replace("amd64", "arm64"))
    assert run(modules, *at_site(modules), "--then", str(modules / "then.yaml"), "--json") == 4
    document = json.loads(capsys.readouterr().out)
    assert states(document)["tools.sif"] == states(document)["solver.sif"] == ["breaks"]
    (modules / "then.yaml").write_text(SITE + "partitions: {a: {}, b: {}}\n")
    assert run(modules, *at_site(modules), "--then", str(modules / "then.yaml")) == 2
    assert "the site has other partitions after the change: none, then a, b" in capsys.readouterr().err


def test_the_needs_of_images_are_one_list(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = modules / "config/envbuild/knowledge/a.yaml"
    rows.parent.mkdir(parents=True)
    rows.write_text(
        'rows:\n  - {rule: SITE.a, if: {mpi.family: mpich}, needs: {scheduler.version: ">=24"}, reason: r,'
        ' source: s, seen: "2026-11-20", fix: f}\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(modules / "config"))
        assert run(modules, "--needs", "--json") == 0
        document = json.loads(capsys.readouterr().out)
        assert {
            "need": "scheduler.version >=24",
            "rule": "SITE.a",
            "reason": "r",
            "source": "s",
            "severity": "error",
            "images": ["solver.sif"],
        } in document["needs"]
        assert [image["name"] for image in document["unknown"]] == ["damaged.sif"]
        run(modules, "--needs")
        said = capsys.readouterr()
    assert "scheduler.version >=24\n  SITE.a: r; s\n  1 image: solver.sif\n" in said.out
    assert "pmi.offered with pmi2" in said.out
    assert "unknown: damaged.sif: " in said.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "no change is given"),
        (("--change", "driver.versoin=1"), "--change: `driver.versoin` is not a fact of a machine"),
        (("--needs", "--change", "driver.version=1"), "--needs takes no change"),
        (("--all", "/nowhere", "--change", "driver.version=1"), "there is no directory `/nowhere`"),
    ],
)
def test_what_is_wrong_is_said(
    words: tuple[str, ...], problem: str, modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(modules, *at_site(modules), *words) == 2
    assert problem in capsys.readouterr().err
