"""The files of each version that was out: this version reads them all, with the commands that users have.

`tests.support.formats` writes those of a version. One that a later version cannot read is a broken promise
(docs/reference/stability.md), unless the test says which command renews it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild import __version__, events
from envbuild.bench import history
from envbuild.lock.text import dump_file, load_file
from envbuild.rules.knowledge import KnowledgeFile
from envbuild.spec.base import BaseImage
from envbuild.spec.config import Config
from envbuild.spec.job import JobHeader
from envbuild.spec.load import load
from envbuild.spec.model import EnvSpec
from envbuild.spec.recipe import Recipe
from envbuild.spec.site import Site
from envbuild.workflows.settings import Settings
from tests.support import formats
from tests.support.images import read_manifest
from tests.unit.formats.conftest import Run, copy_of

VERSIONS = sorted(path.name for path in formats.FORMATS.iterdir())
DIGEST = "sha256:e07bbb8f4df2eaa227f805edee5d43de894d7c34ff0c6ffc5cae78b6bbcd1080"


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(copy_of(request.param, tmp_path / "golden"))
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "golden/store"))
    return tmp_path / "golden"


def test_this_version_has_its_files() -> None:
    assert VERSIONS[0] == "0.1.0"
    assert __version__ in VERSIONS, "run `python -m tests.support.formats`"


@pytest.mark.parametrize(
    ("name", "model", "key", "value"),
    [
        ("spec", EnvSpec, "name", "fluid-ml"),
        ("recipe", Recipe, "owns", ("ringflow",)),
        ("base", BaseImage, "suite", "bookworm"),
        ("site", Site, "default_partition", "gpu"),
        ("config", Config, "retirement_days", 90),
        ("job", JobHeader, "oracle", "averaging"),
        ("knowledge", KnowledgeFile, "schema_", 1),
    ],
)
def test_files_that_people_write(golden: Path, name: str, model: type[Any], key: str, value: object) -> None:
    path = golden / f"{name}.yaml"
    assert getattr(load(model, path.read_bytes(), path).value, key) == value


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("lock", "sha256:2c9132fd8dc88d2fbe829f692aced66deb1a3d9de905b11301dbe311d150de69"),
        ("lock-image", "sha256:" + "2" * 64),
        ("lock-root", "sha256:" + "1" * 64),
    ],
)
def test_locks(golden: Path, name: str, digest: str) -> None:
    path = golden / f"{name}.yaml"
    file = load_file(path.read_bytes(), path)
    lock = file.lock("amd64")
    assert lock is not None
    assert lock.base.digest == digest
    assert load_file(dump_file(file).encode(), path) == file


def test_an_image(golden: Path, run: Run) -> None:
    code, out, _ = run("inspect", "demo.sif", "--json")
    assert code == 0
    data = json.loads(out)
    assert (data["name"], data["version"], data["digest"]) == ("demo", "1", DIGEST)
    assert [layer["name"] for layer in data["file_system"]["layers"]] == ["base", "venv"]
    assert "passed on another host" in data["verdict"]
    code, out, _ = run("verify", "demo.sif", "--key", "demo.key.pub", "--json")
    assert code == 0
    statements = [(statement["state"], statement["kind"]) for statement in json.loads(out)["statements"]]
    assert statements == [("signed", "provenance"), ("signed", "bill")]
    code, out, _ = run("check", "demo.sif", "--json")
    assert code == 0
    assert json.loads(out)["objects"] == 3
    code, out, _ = run("sbom", "demo.sif")
    assert code == 0
    assert json.loads(out)["bomFormat"] == "CycloneDX"


def test_an_extended_image_of_another_tool(golden: Path, run: Run) -> None:
    code, out, _ = run("extend", "--show", "extended.squashfs")
    assert code == 0
    assert "foreign.squashfs (sha256:9a4777172afa, envbuild 0.1.0)" in out
    assert "GREETING = hello" in out


def test_a_verdict(golden: Path, run: Run) -> None:
    code, out, err = run("status", "demo.sif", "--json")
    assert (code, err) == (4, "")
    status = json.loads(out)
    assert (status["state"], status["outcome"], status["ranks"]) == ("stale", "passed", 2)
    assert status["when"] == formats.WHEN


def test_a_store(golden: Path, run: Run) -> None:
    code, out, _ = run("cache", "ls", "--json")
    assert code == 0
    listing = json.loads(out)
    layers = [item for item in listing["items"] if item["kind"] == "layer"]
    needed = [item["name"] for item in layers if item["needed_by"] == ["image /apps/demo.sif"]]
    assert sorted(needed) == ["base", "venv"]
    assert [root["spec"] for root in listing["roots"]] == ["/apps/demo.yaml"]
    code, out, _ = run("cache", "verify")
    assert (code, out.splitlines()[-1]) == (0, "3 layers, 3 blobs, 0 locked files, 0.0 MB read: all whole")
    code, out, _ = run("layer", "import", "store", "--store", "other")
    assert code == 0
    code, out, _ = run("cache", "prune", "--older-than", "0s")
    assert (code, out.split()[:1]) == (0, ["layer"])
    assert {item["name"] for item in json.loads(run("cache", "ls", "--json")[1])["items"]} >= {"base", "venv"}


def test_a_build_over_a_store_takes_its_layers(golden: Path) -> None:
    """The plan of an image of this version is that of the older one: keys and bytes are the same."""
    emitted: list[events.Event] = []
    settings = Settings.of(store=golden / "store", emit=emitted.append)
    (golden / "again").mkdir()
    (golden / "again/demo.yaml").write_text((golden / "demo.yaml").read_text())
    formats.build(golden / "again/demo.yaml", settings)
    assert read_manifest(golden / "again/demo.sif").digest == DIGEST
    started = [event.task for event in emitted if isinstance(event, events.TaskStarted)]
    assert "layer:base" not in started
    assert "layer:venv" not in started


def test_modules(golden: Path, run: Run) -> None:
    code, out, _ = run("module", "ls", "--root", "modules", "--json")
    assert code == 0
    (module,) = json.loads(out)
    assert (module["module"], module["default"], module["verdict"]["state"]) == ("demo/1", True, "stale")
    code, _, _ = run("module", "uninstall", "demo/1", "--root", "modules")
    assert code == 0
    assert not (golden / "modules/envs/demo").exists()


def test_results_of_benchmarks(golden: Path) -> None:
    (result,) = history.read(golden / "results", "demo")
    assert result.points[0].values == (10.0, 10.5, 11.0)


def test_records_of_ranks(golden: Path, run: Run) -> None:
    code, out, _ = run("observe", "records", "--json")
    assert code == 0
    assert [rank["seconds"] for rank in json.loads(out)["ranks"]] == [2.0]


def test_a_report_has_the_keys_that_readers_know(golden: Path) -> None:
    """A later version may add keys; one that is gone or has another type raises `schema`."""
    then = json.loads((golden / "report.json").read_text())
    now = json.loads(formats.report_of(golden / "demo.sif").to_json())
    assert then["schema"] == now["schema"]
    assert set(_keys(then)) <= set(_keys(now))


def _keys(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    yield path, type(value).__name__
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, f"{path}[]")
