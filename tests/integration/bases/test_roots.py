"""Finished roots as bases, for real: the same root as squashfs, tar and OCI image gives the same base."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from envbuild.system import squashfs
from envbuild.system.files import sha256
from tests.integration.conftest import Desk
from tests.support.places import make_place
from tests.support.torture.ground import Ground

DEFINITION = """\
name: {name}
summary: A finished root of Debian 12
distribution: debian
suite: bookworm
version: "12"
glibc: "2.36"
root: {{kind: {kind}, place: {place}, sha256: {sha256}}}
architectures: [amd64]
packages: []
python: {{version: "3.11", abi: cp311}}
"""
SPEC = 'name: finished\nversion: "1"\nbase: finished-{kind}\nmpi: mpich\n'
# Each packs and builds a root; in `make test` tests/unit/build/test_roots.py reads every form.
pytestmark = pytest.mark.slow
KINDS = ("squashfs", "tar", "oci")


@pytest.fixture(scope="module")
def roots(ground: Ground, shared: Path) -> dict[str, tuple[Path, str]]:
    """Pack a small root of Debian 12 in three ways; kind → place and digest."""
    work = make_place(shared, "roots")
    plain, packed, squashed = ground.place / "root.tar", work / "root.tar.gz", work / "root.squashfs"
    (work / "root").mkdir()
    subprocess.run(["tar", "-C", work / "root", "-xf", plain], check=True)
    squashfs.make(work / "root", squashed)
    packed.write_bytes(subprocess.run(["gzip", "-1", "-c", plain], check=True, capture_output=True).stdout)
    storage: list[str | Path] = [
        "--root",
        work / "podman",
        "--runroot",
        work / "run",
        "--storage-driver",
        "vfs",
    ]
    podman: list[str | Path] = ["podman", *storage]
    subprocess.run([*podman, "import", plain, "localhost/root:1"], check=True, capture_output=True)
    layout = work / "layout"
    save: list[str | Path] = [*podman, "save", "--format", "oci-dir", "-o", layout, "localhost/root:1"]
    subprocess.run(save, check=True, capture_output=True)
    subprocess.run([*podman, "unshare", "rm", "-rf", work / "podman"], check=True)
    manifest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    return {
        "squashfs": (squashed, sha256(squashed)),
        "tar": (packed, sha256(packed)),
        "oci": (layout, manifest.removeprefix("sha256:")),
    }


@pytest.fixture(scope="module")
def configured(desk: Desk, roots: dict[str, tuple[Path, str]]) -> dict[str, str]:
    """Define a base of each kind in the user's own configuration; return the environment that finds it."""
    for kind, (place, digest) in roots.items():
        text = DEFINITION.format(name=f"finished-{kind}", kind=kind, place=place, sha256=digest)
        desk.write(f"config/envbuild/base-images/finished-{kind}.yaml", text)
        desk.write(f"finished-{kind}.yaml", SPEC.format(kind=kind))
    return {"XDG_CONFIG_HOME": str(desk.place / "config")}


def test_the_same_root_gives_the_same_base_however_it_is_packed(
    desk: Desk, configured: dict[str, str]
) -> None:
    blobs = set()
    for kind in KINDS:
        desk.envbuild("build", f"finished-{kind}.yaml", env=configured)
        shown = json.loads(desk.envbuild("inspect", f"finished-{kind}.sif", "--json").stdout)
        blobs.add(
            next(layer["digest"] for layer in shown["file_system"]["layers"] if layer["name"] == "base")
        )
    assert len(blobs) == 1


def test_ranks_talk_on_it(desk: Desk, configured: dict[str, str]) -> None:
    desk.envbuild("build", "finished-oci.yaml", env=configured)
    report = json.loads(desk.envbuild("test", "finished-oci.sif", "--ranks", "2", "--json").stdout)
    assert report["passed"] is True


def test_kept_files_are_enough_and_nothing_else_will_do(
    desk: Desk, configured: dict[str, str], roots: dict[str, tuple[Path, str]]
) -> None:
    desk.envbuild("build", "finished-tar.yaml", env=configured)
    desk.envbuild("fetch", "finished-tar.yaml", "--to", "kept-roots", env=configured)
    assert (desk.place / "kept-roots/roots/root.tar.gz").stat().st_size == roots["tar"][0].stat().st_size
    place, _ = roots["tar"]
    away = place.with_name("away")
    place.rename(away)
    store = {**configured, "ENVBUILD_STORE": str(desk.place / "another-store")}
    try:
        words = ["build", "finished-tar.yaml", "--offline", "-o", "again.sif"]
        said = desk.envbuild(*words, env=store, code=2).stderr
        assert "root.tar.gz" in said
        desk.envbuild(*words, "--from", "kept-roots", env=store)
    finally:
        away.rename(place)
    assert (desk.place / "again.sif").read_bytes() == (desk.place / "finished-tar.sif").read_bytes()


def test_a_root_that_may_not_be_read_is_told(
    desk: Desk, configured: dict[str, str], roots: dict[str, tuple[Path, str]]
) -> None:
    place, digest = roots["tar"]
    text = DEFINITION.format(name="finished-closed", kind="tar", place=place, sha256=digest)
    desk.write("config/envbuild/base-images/finished-closed.yaml", text)
    desk.write("closed.yaml", SPEC.format(kind="closed"))
    mode = place.parent.stat().st_mode
    place.parent.chmod(0)
    try:
        said = desk.envbuild("lock", "closed.yaml", env=configured, code=2).stderr
    finally:
        place.parent.chmod(mode)
    assert f"`{place}` cannot be read: Permission denied" in said


def test_another_file_is_refused(
    desk: Desk, configured: dict[str, str], roots: dict[str, tuple[Path, str]]
) -> None:
    text = DEFINITION.format(name="finished-wrong", kind="tar", place=roots["tar"][0], sha256="0" * 64)
    desk.write("config/envbuild/base-images/finished-wrong.yaml", text)
    desk.write("wrong.yaml", SPEC.format(kind="wrong"))
    said = desk.envbuild("lock", "wrong.yaml", env=configured, code=2).stderr
    assert f"its sha256 is {roots['tar'][1]}, and the definition says {'0' * 64}" in said
