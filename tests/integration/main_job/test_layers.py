"""Finished layers carried to a site that cannot build: no user namespace, no subordinate ids, other tools."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Desk, make_desk
from tests.support.torture.ground import BUILT

_WITHOUT = Path(__file__).parents[2] / "support/no-namespaces.sh"


class Site(Desk):
    """A desk where nobody can make a user namespace."""

    def without(self, who: str, *words: str | Path, code: int = 0, env: dict[str, str] | None = None) -> str:
        """Run a command as the user, or with the privileges of Apptainer's set-user-id starter."""
        done = self.run(["sh", _WITHOUT, who, *words], code=code, env=env)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def carried(desk: Desk, image_on: Callable[[str], Path]) -> Path:
    """The layers of a small image, exported."""
    image_on("mpich")
    said = desk.envbuild("layer", "export", "on-mpich.yaml", "--to", "kept-layers", "--json")
    rows = json.loads(said.stdout)["layers"]
    assert {"base", "wheel:mpich", "wheel:mpi4py", "venv"} <= {row["name"] for row in rows}
    assert {row["state"] for row in rows} == {"exported"}
    return desk.place / "kept-layers"


@pytest.fixture
def site(desk: Desk, carried: Path, shared: Path, installed: Path) -> Site:
    """Another machine's desk: spec, lock and layers were carried there."""
    plain = make_desk(shared, "site", installed)
    site = Site(place=plain.place, command=plain.command, store=plain.store)
    for name in ("on-mpich.yaml", "on-mpich.lock.yaml"):
        site.write(name, (desk.place / name).read_text())
    shutil.copytree(carried, site.place / "layers")
    return site


def test_what_lies_there_is_a_whole_store_and_is_written_once(desk: Desk, carried: Path) -> None:
    desk.envbuild("cache", "verify", "--store", carried)
    before = {path: path.stat().st_ino for path in (carried / "blobs").rglob("*")}
    said = desk.envbuild("layer", "export", "on-mpich.yaml", "--to", carried, "--json")
    assert {row["state"] for row in json.loads(said.stdout)["layers"]} == {"present"}
    assert {path: path.stat().st_ino for path in (carried / "blobs").rglob("*")} == before


def test_layers_can_be_used_where_they_lie(site: Site, image_on: Callable[[str], Path]) -> None:
    words = ["build", "on-mpich.yaml", "--locked", "--offline", "--upstream", "layers"]
    assert not BUILT.search(site.envbuild(*words).stderr)
    assert filecmp.cmp(site.place / "on-mpich.sif", image_on("mpich"), shallow=False)
    assert not (site.store / "layers").exists()


def test_a_site_without_namespaces_composes_tests_and_installs(
    site: Site, image_on: Callable[[str], Path]
) -> None:
    envbuild = site.command
    told = site.without("user", envbuild, "doctor", "build", code=5)
    assert "user-namespaces.forbidden" in told
    assert "has 0 subordinate ids" in told
    assert "envbuild layer import" in told
    site.without("user", envbuild, "layer", "import", "layers")
    site.without("user", envbuild, "build", "on-mpich.yaml", "--locked", "--offline")
    image = site.place / "on-mpich.sif"
    assert filecmp.cmp(image, image_on("mpich"), shallow=False)
    told = site.without("starter", envbuild, "test", image)
    assert "PASS mpi.collectives " in told
    assert "FAIL" not in told
    for kind in ("", "--link"):
        root = f"modules{kind}"
        words: list[str | Path] = ["module", "install", image, "--root", root, *([kind] if kind else [])]
        assert "test verdict: UNTESTED" not in site.without("user", envbuild, *words)
        assert site.without("starter", f"{root}/envs/on-mpich/1/bin/python", "-c", "print(6 * 7)") == "42\n"


@pytest.mark.slow  # unit/workflows/test_failures has the causes
def test_what_needs_a_namespace_blames_the_machine_and_not_the_image(
    site: Site, image_on: Callable[[str], Path]
) -> None:
    told = site.without("user", site.command, "build", "on-mpich.yaml", "--locked", code=5)
    assert "error: this user may not make a user namespace: " in told
    assert "mmdebstrap could not install the packages" in told
    assert "with `envbuild layer import`" in told
    told = site.without("user", site.command, "test", image_on("mpich"), code=5)
    assert "error: this user may not make a user namespace: " in told
    assert "Apptainer cannot start on-mpich.sif here" in told
    assert "verdict:     UNTESTED (never tested here)" in site.envbuild("inspect", image_on("mpich")).stdout


def test_a_directory_that_is_closed_is_no_fault_of_an_image(
    site: Site, image_on: Callable[[str], Path]
) -> None:
    script = f'mkdir closed && cd closed && chmod 000 . && exec "{site.command}" test "{image_on("mpich")}"'
    assert "FAIL" not in site.run(["sh", "-c", script]).stdout


@pytest.mark.slow  # unit/plan has the keys of tools
def test_other_tools_are_named_and_not_needed(site: Site, image_on: Callable[[str], Path]) -> None:
    other = site.write("bin/mksquashfs", "#!/bin/sh\necho mksquashfs version 99\nexit 1\n")
    other.chmod(0o755)
    env = {"PATH": f"{other.parent}:{os.environ['PATH']}"}
    words: list[str | Path] = [site.command, "build", "on-mpich.yaml", "--locked", "--offline"]
    refused = site.run(words, env=env, code=2).stderr
    assert "tool mksquashfs is mksquashfs version 99 here" in refused
    site.envbuild("layer", "import", "layers")
    told = site.run(words, env=env).stderr
    assert "tool mksquashfs is mksquashfs version 99 here" in told
    assert "it is not needed, every layer is in the store" in told
    assert filecmp.cmp(site.place / "on-mpich.sif", image_on("mpich"), shallow=False)
    # To make one anew it would be.
    assert "tool mksquashfs" in site.run([*words, "--rebuild"], env=env, code=2).stderr


def test_layers_that_are_not_finished_are_named(site: Site) -> None:
    told = site.envbuild("layer", "export", "on-mpich.yaml", "--to", "out", code=2).stderr
    assert "the store lacks finished layers of `on-mpich.yaml`: base, " in told
    assert "`envbuild build on-mpich.yaml` makes them" in told
    assert not (site.place / "out").exists()


def test_a_damaged_layer_is_not_exported(site: Site) -> None:
    site.envbuild("layer", "import", "layers")
    (blob, *_) = sorted((site.store / "blobs/sha256").glob("??/*"))
    blob.chmod(0o644)
    with blob.open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"\0\1\2\3")
    told = site.envbuild("layer", "export", "on-mpich.yaml", "--to", "out", code=2).stderr
    assert "in the store is damaged" in told
    assert "envbuild cache verify --repair" in told
    assert not list((site.place / "out").rglob(blob.name))
