"""What a build from source leaves behind is not trusted, and what it is given cannot be changed by it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from envbuild.build.sandbox import Sandbox
from envbuild.build.source import build_from_source
from envbuild.errors import BuildError
from envbuild.plan.model import InputFile, Interpreter, Patch, SourceStep
from envbuild.system.apptainer import Bind

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
    ran: list[tuple[Sequence[str], Sequence[Bind], Mapping[str, str]]] = field(default_factory=list)

    def run(
        self, argv: Sequence[str], *, binds: Sequence[Bind], env: Mapping[str, str], **options: object
    ) -> None:
        self.ran.append((argv, binds, env))
        if "build" in argv:
            self.build(next(Path(bind.source) for bind in binds if bind.target == "/mnt/work"))


def run(tmp_path: Path, build: Callable[[Path], None]) -> Recorder:
    sandbox = Recorder(build)
    (tmp_path / "stage").mkdir()
    with pytest.raises(BuildError) as caught:
        build_from_source(
            STEP,
            archive=tmp_path / "files" / "x-1.tar.gz",
            wheels=(),
            stage=tmp_path / "stage",
            plain=cast(Sandbox, sandbox),
            equipped=cast(Sandbox, sandbox),
            uv=tmp_path / "uv",
            log=tmp_path / "log",
        )
    assert "x-1.tar.gz" in caught.value.problem
    assert ("wheels, not one" in caught.value.problem) != ("another distribution" in caught.value.problem)
    return sandbox


def named(name: str) -> Callable[[Path], None]:
    def build(work: Path) -> None:
        (work / "wheel").mkdir()
        (work / "wheel" / name).write_text("")

    return build


def nothing(work: Path) -> None:
    (work / "wheel").mkdir()


def two(work: Path) -> None:
    (work / "wheel").mkdir()
    for name in ("x-1-py3-none-any.whl", "y-1-py3-none-any.whl"):
        (work / "wheel" / name).write_text("")


def a_link(work: Path) -> None:
    (work / "wheel").mkdir()
    (work / "wheel/x-1-py3-none-any.whl").symlink_to(work / "secret")
    (work / "secret").write_text("of this host")


def a_link_to_the_directory(work: Path) -> None:
    (work / "elsewhere").mkdir()
    (work / "elsewhere/x-1-py3-none-any.whl").write_text("of this host")
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
    assert {"--offline", "--no-index", "--no-build-isolation"} <= set(build)
    assert (tmp_path / "stage/build/patches/a.patch").read_bytes() == b"-old"


def test_the_recipes_variables_reach_the_build(tmp_path: Path) -> None:
    sandbox = run(tmp_path, nothing)
    assert all(env["LDFLAGS"] == "-s" for _, _, env in sandbox.ran)
