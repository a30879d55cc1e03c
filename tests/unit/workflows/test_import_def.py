"""`envbuild import-def`: with the recipes that there are, and files that lie beside the one that is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.errors import EnvbuildError, RequestError
from envbuild.spec.foreign.model import Proposal
from envbuild.workflows.import_def import import_definition
from envbuild.workflows.inputs import read_asked

DOCKERFILE = """\
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y less
RUN pip install torch mpi4py tensorflow scipy==1.17.1
"""


def imported(directory: Path, text: str, name: str = "Dockerfile") -> Proposal:
    (directory / name).write_text(text)
    return import_definition(directory / name).proposal


def test_what_is_proposed_can_be_asked_for(tmp_path: Path) -> None:
    place = tmp_path / "Training 2"
    place.mkdir()
    (place / "Dockerfile").write_text(DOCKERFILE)
    import_definition(place / "Dockerfile", output=place / "spec.yaml")
    asked = read_asked(place / "spec.yaml")
    assert asked.spec.name == "training-2"
    assert {chosen.recipe.name for chosen in asked.recipes} == {"mpich", "pytorch", "tensorflow"}
    assert (asked.base.name, asked.spec.packages.system) == ("debian-12", ("less",))


def test_which_recipe_brings_a_distribution(tmp_path: Path) -> None:
    text = "FROM debian:12\nRUN pip install torch jax jaxlib keras horovod onnxruntime triton mpi4py\n"
    proposal = imported(tmp_path, text)
    assert proposal.frameworks == ["pytorch", "jax", "keras", "horovod", "onnxruntime"]
    assert proposal.mpi == "mpich"


def test_a_base_with_mistakes_is_not_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    bases = tmp_path / "envbuild/base-images"
    bases.mkdir(parents=True)
    (bases / "debian-12.yaml").write_text("name: debian-12\n")
    assert imported(tmp_path, "FROM debian:12\n").base == ""
    assert imported(tmp_path, "FROM debian:11\n").base == "debian-11"


def test_a_mark_at_the_beginning_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("\ufeffless\n")
    text = "\ufeffFROM debian:12\nRUN pip install -r requirements.txt\n"
    assert imported(tmp_path, text).python_packages == ["less"]


def test_nothing_outside_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret\n")
    below = tmp_path / "below"
    below.mkdir()
    (below / "link.txt").symlink_to("../secret.txt")
    text = (
        "FROM debian:12\n"
        f"RUN pip install -r ../secret.txt -r {tmp_path}/secret.txt -r link.txt\n"
        f"COPY ../secret.txt link.txt {tmp_path}/secret.txt /x/\n"
    )
    proposal = imported(below, text)
    assert (proposal.python_packages, proposal.files) == ([], [])
    assert sum(note.outcome == "left" for note in proposal.notes) == 6


def test_an_output_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("mine\n")
    with pytest.raises(RequestError, match=r"spec\.yaml` is there already"):
        import_definition(tmp_path / "Dockerfile", output=tmp_path / "spec.yaml")
    assert (tmp_path / "spec.yaml").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"name: x\n", "is neither a definition file nor a Dockerfile"),
        (b"FROM x\n" * 30_000, "is neither"),
        (b"#" * (2 << 20), "is too large"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(EnvbuildError, match=problem):
        import_definition(tmp_path / "x")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.def"
    path.write_text("Bootstrap: docker\nFrom: debian:12\n%post\n    pip install scipy\n    make\n")
    with pytest.raises(SystemExit) as ended:
        main(["import-def", str(path)])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert "name: train\n" in said.out
    assert said.err.splitlines() == [
        f"{path}:1: needless: Bootstrap: docker: a base image is made from Debian's packages",
        f"{path}:2: taken: From: debian:12: base: debian-12",
        f"{path}:4: taken: scipy: packages.python",
        f"{path}:5: left: make: what is built or downloaded becomes a recipe with `source`,"
        " or a package of the site's index",
        f"{path}: 2 taken, 1 needless, 1 left out",
    ]
    with pytest.raises(SystemExit):
        main(["import-def", str(path), "--json", "-o", str(tmp_path / "spec.yaml")])
    told = json.loads(capsys.readouterr().out)
    assert told["spec"]["packages"] == {"python": ["scipy"]}
    assert [note["line"] for note in told["notes"]] == [1, 2, 4, 5]
    assert (tmp_path / "spec.yaml").read_text().startswith("# Proposed from train.def")


@pytest.mark.parametrize("name", ["bad\udcff.def", "two\nname: evil.def", "esc\x1b[2J.def"])
def test_a_name_of_a_file_is_a_remark_whatever_it_holds(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.write_text("FROM debian:12\nRUN make everything\n")
    proposed = import_definition(source, output=tmp_path / "spec.yaml")
    assert (tmp_path / "spec.yaml").read_text() == proposed.text
    assert all(char.isprintable() or char == "\n" for char in proposed.text)
    assert "\nname: evil" not in proposed.text
