"""Finished roots as bases, for real: the same root as squashfs, tar and OCI image gives the same base."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Desk, layers, own
from tests.support.places import make_place

DEFINITION = """\
name: {name}
summary: A finished root of Debian 12
distribution: debian
suite: bookworm
version: "12"
glibc: "2.36"
root: {{kind: {kind}, place: {place}, sha256: {sha256}}}
architectures: [amd64]
packages: [libstdc++6]
python: {{version: "3.11", abi: cp311, packages: []}}
"""
SPEC = 'name: finished\nversion: "1"\nbase: finished-{kind}\nmpi: mpich\n'
KINDS = ("squashfs", "tar", "oci")


@pytest.fixture(scope="module")
def roots(desk: Desk, shared: Path) -> dict[str, tuple[Path, str]]:
    """Pack the root of debian-12 in three ways; kind → place and digest."""
    desk.write("plain.yaml", 'name: plain\nversion: "1"\nbase: debian-12\n')
    desk.envbuild("build", "plain.yaml")
    key = layers(desk, "plain.yaml")["base"]["key"]
    store = desk.store
    record = next(
        found
        for path in (store / "layers").rglob("*")
        if path.is_file() and (found := json.loads(path.read_text()))["key"] == key
    )
    digest = record["blob"].removeprefix("sha256:")
    blob = next(path for path in (store / "blobs").rglob(digest))
    work = make_place(shared, "roots")
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-d", work / "root", blob], check=True)
    plain, packed = work / "root.tar", work / "root.tar.xz"
    subprocess.run(["tar", "-C", work / "root", "--sort=name", "-cf", plain, "."], check=True)
    packed.write_bytes(subprocess.run(["xz", "-1", "-c", plain], check=True, capture_output=True).stdout)
    podman: list[str | Path] = [
        "podman",
        "--root",
        work / "podman",
        "--runroot",
        work / "run",
        "--storage-driver",
        "vfs",
    ]
    subprocess.run([*podman, "import", plain, "localhost/root:1"], check=True, capture_output=True)
    layout = work / "layout"
    save: list[str | Path] = [*podman, "save", "--format", "oci-dir", "-o", layout, "localhost/root:1"]
    subprocess.run(save, check=True, capture_output=True)
    manifest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    for path in (layout, *layout.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return {
        "squashfs": (blob, digest),
        "tar": (packed, hashlib.sha256(packed.read_bytes()).hexdigest()),
        "oci": (layout, manifest.removeprefix("sha256:")),
    }


@pytest.fixture(scope="module")
def configured(desk: Desk, roots: dict[str, tuple[Path, str]]) -> dict[str, str]:
    """Define a base of each kind in the user's own configuration; return the environment that finds it."""
    for kind, (place, digest) in roots.items():
        text = DEFINITION.format(name=f"finished-{kind}", kind=kind, place=place, sha256=digest)
        desk.write(f"config/envbuild/base-images/finished-{kind}.yaml", text)
        desk.write(f"finished-{kind}.yaml", SPEC.format(kind=kind))
    for path in (desk.place / "config").rglob("*"):
        own(path, desk.place)
    return {"XDG_CONFIG_HOME": str(desk.place / "config")}


def test_the_same_root_gives_the_same_base_however_it_is_packed(
    desk: Desk, configured: dict[str, str]
) -> None:
    blobs = set()
    for kind in KINDS:
        desk.envbuild("build", f"finished-{kind}.yaml", env=configured)
        shown = json.loads(desk.envbuild("inspect", f"finished-{kind}.sif", "--json").stdout)
        blobs.add(next(part["digest"] for part in shown["parts"] if part["role"] == "root"))
    assert len(blobs) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_talk_on_it(kind: str, desk: Desk, configured: dict[str, str]) -> None:
    desk.envbuild("build", f"finished-{kind}.yaml", env=configured)
    report = json.loads(desk.envbuild("test", f"finished-{kind}.sif", "--ranks", "2", "--json").stdout)
    assert report["passed"] is True


def test_kept_files_are_enough_and_nothing_else_will_do(
    desk: Desk, configured: dict[str, str], roots: dict[str, tuple[Path, str]]
) -> None:
    desk.envbuild("build", "finished-tar.yaml", env=configured)
    desk.envbuild("fetch", "finished-tar.yaml", "--to", "kept-roots", env=configured)
    assert (desk.place / "kept-roots/roots/root.tar.xz").stat().st_size == roots["tar"][0].stat().st_size
    place, _ = roots["tar"]
    away = place.with_name("away")
    place.rename(away)
    store = {**configured, "ENVBUILD_STORE": str(desk.place / "another-store")}
    try:
        said = desk.envbuild("build", "finished-tar.yaml", "--offline", env=store, code=2).stderr
        assert "root.tar.xz" in said
        words = ["--offline", "--from", "kept-roots", "-o", "again.sif"]
        desk.envbuild("build", "finished-tar.yaml", *words, env=store)
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
    place.parent.chmod(0o700)
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
