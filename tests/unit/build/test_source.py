"""What a build from source leaves behind is not trusted, and what it is given cannot be changed by it."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from envbuild.build.layer_writer import LayerWriter
from envbuild.build.sandbox import Sandbox
from envbuild.build.source import build_from_source
from envbuild.errors import BuildError
from envbuild.plan.model import InputFile, Interpreter, Patch, SourceStep
from envbuild.system.apptainer import Bind
from tests.support.wheels import make_wheel

STEP = SourceStep(
    prefix="/opt/env",
    interpreter=Interpreter(abi="cp311", architecture="amd64"),
    archive=InputFile(name="x-1.tar.gz", sha256="0" * 64),
    build_wheels=(),
    patches=(Patch(name="a.patch", content=base64.b64encode(b"-old").decode()),),
    environment={"LDFLAGS": "-s"},
    tools=(),
)


@dataclass
class Recorder:
    """Stands for a sandbox: notes what would run, and does what a build does to its directory."""

    build: Callable[[Path], None]
    unpack: Callable[[Path], None] = lambda source: None
    ran: list[tuple[Sequence[str], Sequence[Bind], Mapping[str, str]]] = field(default_factory=list)

    def run(
        self, argv: Sequence[str], *, binds: Sequence[Bind], env: Mapping[str, str], **options: object
    ) -> None:
        self.ran.append((argv, binds, env))
        work = next(Path(bind.source) for bind in binds if bind.target == "/mnt/work")
        if argv[0] == "tar":
            self.unpack(work / "src")
        if argv[0] == "/opt/env/bin/python":
            self.build(work)


def run(
    tmp_path: Path,
    build: Callable[[Path], None],
    unpack: Callable[[Path], None] = lambda source: None,
    wheels: Sequence[Path] = (),
) -> Recorder:
    sandbox = Recorder(build, unpack)
    (tmp_path / "stage").mkdir()
    with pytest.raises(BuildError) as caught:
        build_from_source(
            STEP,
            archive=tmp_path / "files" / "x-1.tar.gz",
            wheels=[(InputFile(name=wheel.name, sha256="0" * 64), wheel) for wheel in wheels],
            stage=tmp_path / "stage",
            plain=cast(Sandbox, sandbox),
            equipped=cast(Sandbox, sandbox),
            log=tmp_path / "log",
            writer=cast(LayerWriter, None),
        )
    assert "x-1.tar.gz" in caught.value.problem
    reasons = ("wheels, not one", "another distribution", "`pyproject.toml` that cannot be read")
    assert sum(reason in caught.value.problem for reason in reasons) == 1
    return sandbox


def named(name: str) -> Callable[[Path], None]:
    def build(work: Path) -> None:
        (work / "wheel" / name).write_text("")

    return build


def nothing(work: Path) -> None:
    assert list((work / "wheel").iterdir()) == []


def two(work: Path) -> None:
    for name in ("x-1-py3-none-any.whl", "y-1-py3-none-any.whl"):
        (work / "wheel" / name).write_text("")


def a_link(work: Path) -> None:
    (work / "wheel/x-1-py3-none-any.whl").symlink_to(work / "secret")
    (work / "secret").write_text("of this host")


def a_link_to_the_directory(work: Path) -> None:
    (work / "elsewhere").mkdir()
    (work / "elsewhere/x-1-py3-none-any.whl").write_text("of this host")
    (work / "wheel").rmdir()
    (work / "wheel").symlink_to(work / "elsewhere")


@pytest.mark.parametrize("name", ["x.whl", "y-1-py3-none-any.whl", "x-2-py3-none-any.whl", "x-1\n-py3.whl"])
def test_a_wheel_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    run(tmp_path, named(name))


@pytest.mark.parametrize("build", [nothing, two, a_link, a_link_to_the_directory])
def test_one_regular_wheel_or_none(tmp_path: Path, build: Callable[[Path], None]) -> None:
    run(tmp_path, build)


def test_the_build_can_change_its_own_directory_alone(tmp_path: Path) -> None:
    sandbox = run(tmp_path, nothing)
    assert len(sandbox.ran) == 3
    for _, binds, _ in sandbox.ran:
        assert {bind.target for bind in binds if bind.writable} == {"/mnt/work"}
    unpack, patch, build = (argv for argv, _, _ in sandbox.ran)
    assert "--file=/mnt/archive/x-1.tar.gz" in unpack
    assert "--input=/mnt/patches/a.patch" in patch
    assert "--fuzz=0" in patch
    assert build[-3:] == ["setuptools.build_meta:__legacy__", "/mnt/work/src", "/mnt/work/wheel"]
    assert (tmp_path / "stage/build/patches/a.patch").read_bytes() == b"-old"


def test_the_recipes_variables_reach_the_build(tmp_path: Path) -> None:
    sandbox = run(tmp_path, nothing)
    assert all(env["LDFLAGS"] == "-s" for _, _, env in sandbox.ran)


def project(text: str) -> Callable[[Path], None]:
    def unpack(source: Path) -> None:
        (source / "pyproject.toml").write_text(text)

    return unpack


def test_the_backend_that_the_source_names_builds_it(tmp_path: Path) -> None:
    text = '[build-system]\nbuild-backend = "own:hooks.first"\nbackend-path = ["tools"]\n'
    sandbox = run(tmp_path, nothing, project(text))
    *_, (build, _, _) = sandbox.ran
    assert build[-4:] == ["own:hooks.first", "/mnt/work/src", "/mnt/work/wheel", "/mnt/work/src/tools"]


def linked(source: Path) -> None:
    secret = source.parents[3] / "secret.toml"
    secret.write_text("")
    (source / "pyproject.toml").symlink_to(secret)


def moved(source: Path) -> None:
    """Take the place of the source by a link that leads out."""
    secrets = source.parents[3] / "secrets"
    secrets.mkdir()
    (secrets / "pyproject.toml").write_text("")
    source.rmdir()
    source.symlink_to(secrets)


def a_pipe(source: Path) -> None:
    os.mkfifo(source / "pyproject.toml")


@pytest.mark.redteam
@pytest.mark.parametrize(
    "unpack",
    [
        linked,
        moved,
        a_pipe,
        project("[build-system]\nbuild-backend = 7\n"),
        project("[build-system]\nbuild-backend = 'a\\u0000b'\n".replace("'", '"')),
        project("build-system = []\n"),
        project("x = " + "[" * 5000),
        project("#" * (5 << 20)),
    ],
    ids=["link", "linked directory", "pipe", "number", "nul", "list", "deep", "large"],
)
def test_what_unpacking_left_is_read_with_care(unpack: Callable[[Path], None], tmp_path: Path) -> None:
    assert len(run(tmp_path, nothing, unpack).ran) == 2, "nothing is built"


@pytest.mark.redteam
def test_what_a_build_imports_is_not_unpacked_where_a_program_of_the_sandbox_could_lead_it(
    tmp_path: Path,
) -> None:
    """The base may be a stranger's, and so may its `tar`."""
    target = tmp_path / "home"
    target.mkdir()

    def links(source: Path) -> None:
        for name in ("site", "wheel", "scratch"):
            path = source.parent / name
            if path.is_dir():
                path.rmdir()
            path.symlink_to(target)

    wheel = make_wheel(tmp_path / "files", "tool-1-py3-none-any.whl", **{"tool.py": "mine"})
    run(tmp_path, lambda work: None, links, wheels=[wheel])
    assert list(target.iterdir()) == []
