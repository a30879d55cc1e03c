"""A definition file: what the lock and the plan say, and nothing in it that a shell would take for more."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import RequestError
from envbuild.image.definition import definition_file
from envbuild.image.environment import default_environment
from envbuild.lock.model import RootPin
from tests.support.asking import bare_lock, build_deb, deb, wheel
from tests.support.trees import manifest

GOLDEN = Path(__file__).parents[2] / "golden" / "export"


LOCK = bare_lock(
    version="2026.11",
    base_debs=(deb("libc6", "2.36-9+deb12u14"), deb("python3", "3.11.2-1+b1")),
    system_debs=(deb("less", "590-2.1~deb12u2"),),
    python=(
        wheel("horovod", "0.28.1", layer="framework:horovod", file="horovod-0.28.1.tar.gz", sha256="8" * 64),
        wheel("mpich", "5.0.2", layer="mpi", sha256="d" * 64),
        wheel("torch", "2.13.0+cpu", layer="framework:pytorch", origin="pytorch-cpu", sha256="4" * 64),
    ),
    build_debs=(build_deb(deb("cmake", "3.25"), "framework:horovod"),),
    build_python=(wheel("setuptools", "80.1", layer="framework:horovod", sha256="3" * 64),),
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def plan(*layers: dict[str, Any], suite: str = "bookworm") -> str:
    return json.dumps({"layers": [{"name": "base", "kind": "base", "step": {"suite": suite}}, *layers]})


def files_layer(path: str = "/srv/it's/$x", links: dict[str, str] | None = None) -> dict[str, Any]:
    entry = {"path": path, "content": encoded("hello\n" * 30), "executable": True}
    return {"name": "files", "kind": "files", "step": {"files": [entry], "links": links or {}}}


SOURCE = {
    "name": "framework:horovod",
    "kind": "source",
    "step": {
        "environment": {"LDFLAGS": "-s -O2", "HOROVOD_WITH_MPI": "1"},
        "patches": [{"path": "cxx17.patch", "content": encoded("--- a\n+++ b\n"), "executable": False}],
    },
}
METADATA = {**files_layer("/.envbuild/manifest.json"), "name": "metadata"}


def written(*layers: dict[str, Any]) -> str:
    made = manifest(environment=default_environment({"GREETING": "it's $HOME"}))
    return definition_file(made, LOCK, plan(*layers))


def test_a_definition_file(golden: Callable[[Path, str], None]) -> None:
    text = written(METADATA, files_layer(links={"/usr/bin/mpirun": "/opt/mpi/bin/mpirun"}), SOURCE)
    golden(GOLDEN / "demo.def", text)


def section(text: str, name: str) -> str:
    """One section's body, as Apptainer hands it to a shell."""
    return text.partition(f"%{name}\n")[2].partition("\n%")[0]


@pytest.mark.parametrize("name", ["post", "environment", "runscript"])
def test_what_a_shell_gets_is_sound(name: str) -> None:
    text = written(files_layer(), SOURCE)
    subprocess.run(["sh", "-n"], input=section(text, name), text=True, check=True)


def test_hostile_words_stay_words(tmp_path: Path) -> None:
    """The part that writes files, carried out below a directory of ours, does what it says and no more."""
    odd = f"{tmp_path}/a b$(touch {tmp_path}/hacked)'; touch {tmp_path}/hacked; '"
    text = written(files_layer(odd, {f"{tmp_path}/link": f"x`touch {tmp_path}/hacked`"}))
    body = section(text, "post").partition("image's own.\n")[2].partition("\n    # What is not")[0]
    subprocess.run(["sh", "-eu"], input=body, text=True, check=True)
    assert Path(odd).read_text() == "hello\n" * 30
    assert (tmp_path / "link").readlink() == Path(f"x`touch {tmp_path}/hacked`")
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "broken",
    [
        "no JSON",
        "[]",
        "{}",
        '{"layers": []}',
        plan(suite="../../etc"),
        plan(suite="bookworm\nFrom: evil"),
        plan(files_layer("/srv/a\nrm -rf /")),
        plan({"name": "files", "kind": "files", "step": {}}),
        plan({**SOURCE, "step": {"environment": {"A": "x\ny"}, "patches": []}}),
    ],
)
def test_a_plan_that_cannot_be_used(broken: str) -> None:
    with pytest.raises(RequestError, match="the image's plan cannot be read"):
        definition_file(manifest(), LOCK, broken)


def test_images_that_cannot_be_told() -> None:
    legacy = replace(LOCK, base=replace(LOCK.base, python="2.7"))
    with pytest.raises(RequestError, match=r"an image of Python 2\.7 cannot be told as a definition file"):
        definition_file(manifest(), legacy, plan())
    root = RootPin(kind="tar", file="rocky.tar", size_bytes=1, sha256="0" * 64)
    finished = replace(LOCK, base_debs=(), base_root=(root,))
    with pytest.raises(RequestError, match="on the finished root `debian-12` cannot be told"):
        definition_file(manifest(), finished, plan())


def test_an_image_without_python_packages_or_files() -> None:
    bare = replace(LOCK, python=(), build_debs=(), build_python=())
    text = definition_file(manifest(), bare, plan({"name": "venv", "kind": "venv", "step": {}}))
    assert "-m pip" not in section(text, "post")
    assert "--system-site-packages" not in text
    seen = plan({"name": "venv", "kind": "venv", "step": {"debian_python": True}})
    assert "venv --without-pip --system-site-packages /opt/env" in definition_file(manifest(), bare, seen)
