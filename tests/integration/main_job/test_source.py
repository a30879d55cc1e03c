"""A distribution that has no wheel: built offline from its source, beside a toolchain that stays outside."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.integration.conftest import Desk

SPEC = 'name: tiny\nversion: "1"\nbase: debian-12\nframeworks: [tiny]\n'

# What the build sees is written into what it makes.
SETUP = """\
import json, os, pathlib, socket, subprocess
from setuptools import setup

# A process that outlives the build, with its output.
subprocess.Popen(["sleep", "10000"], start_new_session=True)

seen = {
    "network": [name for _, name in socket.if_nameindex()],
    "stranger": sorted(name for name in os.environ if name.startswith(("TINY_HOST", "SUDO", "PIP"))),
    "host": os.path.exists(@PLACE@),
    "told": os.environ["TINY_TOLD"],
}
pathlib.Path("tiny.py").write_text("SEEN = " + repr(seen) + "\\n" + pathlib.Path("rest.py.in").read_text())
setup(name="tiny", version="1.0", py_modules=["tiny"])
"""

PATCH = """\
--- a/rest.py.in
+++ b/rest.py.in
@@ -1 +1 @@
-ANSWER = 41
+ANSWER = 42
"""

RECIPE = """\
name: tiny
kind: framework
summary: Built from its source
versions: ["1.0"]
variants:
  cpu:
    requirements: ["tiny=={version}"]
owns: [tiny]
source:
  distribution: tiny
  python: [setuptools, wheel]
  environment: {TINY_TOLD: by-the-recipe}
  patches: [answer.patch]
imports: [tiny]
"""


def sdist(path: Path, files: dict[str, str]) -> None:
    """Write a source archive; the same files make the same bytes."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"tiny-1.0/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture(scope="module")
def bench(desk: Desk, image: Path) -> Desk:
    """Put spec, recipe and source archive before the ordinary user, whose store has the base."""
    desk.write("tiny.yaml", SPEC)
    desk.write("recipes/tiny/recipe.yaml", RECIPE)
    desk.write("recipes/tiny/patches/answer.patch", PATCH)
    sources = desk.place / "sources"
    sources.mkdir()
    metadata = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    setup = SETUP.replace("@PLACE@", repr(str(desk.place)))
    sdist(
        sources / "tiny-1.0.tar.gz", {"PKG-INFO": metadata, "setup.py": setup, "rest.py.in": "ANSWER = 41\n"}
    )
    desk.write("site.yaml", f"name: here\nfind_links: [{sources}]\n")
    return desk


def build(bench: Desk, *words: str, code: int = 0) -> str:
    finished = bench.envbuild(
        *("build", "tiny.yaml", "--site", "site.yaml", "--recipes", "recipes", *words),
        code=code,
        env={"TINY_HOST": "secret"},
    )
    return finished.stdout + finished.stderr


def test_a_source_is_built_patched_and_installed_without_its_toolchain(bench: Desk) -> None:
    build(bench)
    said = bench.apptainer(
        *("exec", "tiny.sif", "python", "-c"),
        "import json, tiny; print(json.dumps([tiny.ANSWER, tiny.SEEN]))",
    ).stdout
    answer, seen = json.loads(said)
    assert answer == 42
    assert seen == {"network": ["lo"], "stranger": [], "host": False, "told": "by-the-recipe"}
    for words in (("which", "patch"), ("python", "-c", "import setuptools")):
        bench.apptainer("exec", "tiny.sif", *words, code=1)
    lock = (bench.place / "tiny.lock.yaml").read_text()
    assert "tiny-1.0.tar.gz" in lock
    assert 'name: "patch"' in lock
    assert 'name: "setuptools"' in lock
    shown = json.loads(
        bench.envbuild("plan", "tiny.yaml", "--json", "--site", "site.yaml", "--recipes", "recipes").stdout
    )
    states = {row["name"]: row["state"] for row in shown["layers"]}
    assert states["framework:tiny"] == "cached"


@pytest.mark.slow  # the recipe above is built from source by the same steps
def test_a_spec_builds_what_has_no_wheel(bench: Desk) -> None:
    metadata = "Metadata-Version: 2.2\nName: tiny\nVersion: 1.0\nRequires-Dist: six\n"
    setup = "from setuptools import setup\nsetup(name='tiny', version='1.0', py_modules=['tiny'])\n"
    own = bench.place / "own"
    own.mkdir()
    sdist(own / "tiny-1.0.tar.gz", {"PKG-INFO": metadata, "setup.py": setup, "tiny.py": "import six\n"})
    bench.write("site-of-own.yaml", f"name: here\nfind_links: [{own}]\n")
    text = 'name: own\nversion: "1"\nbase: debian-12\npackages: {python: [tiny], from_source: [tiny]}\n'
    bench.write("own.yaml", text)
    bench.envbuild("build", "own.yaml", "--site", "site-of-own.yaml")
    bench.apptainer("exec", "own.sif", "python", "-c", "import tiny")
    bench.apptainer("exec", "own.sif", "python", "-c", "import setuptools", code=1)
    sdist(own / "tiny-1.0.tar.gz", {"PKG-INFO": metadata, "setup.py": "import absent\n"})
    (bench.place / "own.lock.yaml").unlink()
    finished = bench.envbuild("build", "own.yaml", "--site", "site-of-own.yaml", code=3)
    assert "No module named 'absent'" in finished.stderr
    assert "`{name: tiny, python: […], system: [g++, python3-dev]}`" in finished.stderr


@pytest.mark.slow  # in `make test` tests/integration/torture rebuilds a tiny image
def test_a_source_gives_the_same_bytes_again(bench: Desk) -> None:
    build(bench)
    before = (bench.place / "tiny.sif").read_bytes()
    said = build(bench, "--rebuild")
    assert "build layer framework:tiny" in said
    assert "not reproducible" not in said
    assert (bench.place / "tiny.sif").read_bytes() == before


def test_what_the_build_needs_is_kept_with_the_rest(bench: Desk) -> None:
    given = ("--site", "site.yaml", "--recipes", "recipes")
    bench.envbuild("fetch", "tiny.yaml", "--to", "tiny-kept", *given)
    kept = {path.name for path in (bench.place / "tiny-kept").rglob("*") if path.is_file()}
    assert "tiny-1.0.tar.gz" in kept
    assert any(name.startswith("patch_") for name in kept)
    assert any(name.startswith("setuptools-") for name in kept)


def test_a_patch_that_does_not_fit_is_told_with_its_name(bench: Desk) -> None:
    recipes = bench.place / "other"
    shutil.copytree(bench.place / "recipes", recipes, dirs_exist_ok=True)
    (recipes / "tiny/patches/answer.patch").write_text(PATCH.replace("41", "40"))
    finished = bench.envbuild(
        *("build", "tiny.yaml", "-o", "none.sif", "--site", "site.yaml", "--recipes", "other"), code=3
    )
    assert "the patch `answer.patch` does not fit" in finished.stderr
    assert not (bench.place / "none.sif").exists()
