"""Debian releases as bases: an ordinary user's image on each talks across ranks, and has the Python it says.

The main job is on debian-12, and toolkits are on debian-11.
"""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import ROOT, Desk

SPEC = """\
name: ranks
version: "1"
base: {base}
mpi: mpich
"""


@pytest.mark.slow
@pytest.mark.parametrize(("base", "python"), [("debian-13", "3.13")])
def test_ranks_talk_on_it(desk: Desk, base: str, python: str) -> None:
    desk.write(f"{base}.yaml", SPEC.format(base=base))
    desk.envbuild("build", f"{base}.yaml")
    image = desk.place / f"{base}.sif"
    report = json.loads(desk.envbuild("test", image, "--ranks", "2", "--json").stdout)
    assert report["passed"] is True
    assert report["counts"]["SKIP"] == 0
    said = desk.apptainer("exec", image, "python", "-c", "import sys; print(sys.version_info[:2])").stdout
    assert said == f"({python.replace('.', ', ')})\n"
    release = desk.apptainer("exec", image, "cat", "/etc/os-release").stdout
    assert f'VERSION_ID="{base.removeprefix("debian-")}"' in release


@pytest.mark.slow  # in `make test` tests/integration/torture rebuilds a tiny image
def test_the_base_is_the_same_when_it_is_made_again(desk: Desk) -> None:
    desk.write("again.yaml", 'name: again\nversion: "1"\nbase: debian-13\n')
    desk.envbuild("build", "again.yaml")
    before = (desk.place / "again.sif").read_bytes()
    said = desk.envbuild("build", "again.yaml", "--rebuild").stderr
    assert "build layer base: done" in said
    assert "not reproducible" not in said
    assert (desk.place / "again.sif").read_bytes() == before


def test_files_of_an_installed_envbuild_name_a_schema_that_is_there(desk: Desk) -> None:
    data = next((desk.command.parents[1] / "lib").glob("python*/site-packages/envbuild/data"))
    shipped = [
        *data.glob("recipes/*/recipe.yaml"),
        *data.glob("base-images/*.yaml"),
        *data.glob("sites/*.yaml"),
    ]
    assert len(shipped) > 30
    for path in shipped:
        header = path.read_text(encoding="utf-8").split("\n")[0]
        schema = path.parent / header.partition("$schema=")[2]
        published = ROOT / "docs" / "schemas" / schema.name
        assert schema.read_bytes() == published.read_bytes()
