"""An image of ours that is extended is the image of its spec with what was added."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard

from envbuild.events import Event, TaskStarted
from envbuild.extend.request import ExtendRequest
from envbuild.image.file import ImageFile
from envbuild.preflight.image_facts import carried_facts
from envbuild.preflight.report import run_preflight
from envbuild.store.store import Store
from envbuild.workflows.extend import extend_image
from envbuild.workflows.settings import Settings
from tests.support.images import scan_image
from tests.support.mirrors import write_wheel
from tests.support.torture.ground import Ground
from tests.support.wheels import make_wheel


@pytest.fixture(scope="module")
def wheels(ground: Ground) -> None:
    """What is added, in the index that the site names."""
    directory = ground.place / "wheels"
    write_wheel(directory, "gamma", "1.0", requires=["delta", "alpha"])
    write_wheel(directory, "delta", "0.5")
    write_wheel(directory, "alpha", "2.0", requires=["delta"])
    write_wheel(directory, "zeta", "1.0", requires=['delta; extra == "more"'])


def run(ground: Ground, desk: Path, *words: str | Path, code: int = 0, store: str = "store") -> str:
    """Run the command at a desk; return its output."""
    done = ground.run(words, desk, store=desk / store)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def inspected(ground: Ground, desk: Path, image: Path) -> dict[str, Any]:
    """Return what an image says of itself, without what was added to it."""
    shown: dict[str, Any] = json.loads(ground.run(["inspect", image, "--json"], desk).stdout)
    return {name: value for name, value in shown.items() if name != "extensions"}


def root_of(image: Path, manifest: dict[str, Any]) -> bytes:
    """Return the file system of an image; it begins at the first 4 KiB behind the descriptors."""
    return image.read_bytes()[32768:][: manifest["file_system"]["size_bytes"]]


def built(ground: Ground, desk: Path, changes: Mapping[str, Any], upgrade: Sequence[str] = ()) -> Path:
    """Build the spec with changes, from the lock of the old image."""
    spec = yaml.safe_load(ground.spec.read_text())
    packages = {"python": [*spec["packages"]["python"], *changes.get("python", ())]}
    rest = {name: value for name, value in changes.items() if name != "python"}
    (desk / "more.yaml").write_text(yaml.safe_dump({**spec, **rest, "packages": packages}))
    shutil.copy(ground.place / "tiny.lock.yaml", desk / "more.lock.yaml")
    if upgrade:
        run(ground, desk, "lock", "--upgrade", *upgrade, "more.yaml", store="other")
    run(ground, desk, "build", "more.yaml", store="other")
    return desk / "more.sif"


CASES: dict[str, tuple[list[str], dict[str, Any], tuple[str, ...]]] = {
    "a package with what it needs": (["--python", "gamma"], {"python": ["gamma"]}, ()),
    "a variable": (["--env", "GREETING=it's me"], {"environment": {"GREETING": "it's me"}}, ()),
    "a file": (
        ["--file", "note.txt:/opt/data/note.txt"],
        {"files": [{"source": "note.txt", "target": "/opt/data/note.txt"}]},
        (),
    ),
    "another version": (["--upgrade", "alpha"], {}, ("alpha",)),
    "all at once": (
        [
            "--python=gamma",
            "--python=zeta[more]",
            "--upgrade=alpha",
            "--env=A=b",
            "--file=note.txt:/opt/n.txt",
        ],
        {
            "python": ["gamma", "zeta[more]"],
            "environment": {"A": "b"},
            "files": [{"source": "note.txt", "target": "/opt/n.txt"}],
        },
        ("alpha",),
    ),
}


@pytest.mark.parametrize(
    "case",
    # "all at once" does what the others do.
    [case if case == "all at once" else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
@pytest.mark.usefixtures("wheels")
def test_it_is_what_build_makes_of_the_extended_spec(case: str, ground: Ground) -> None:
    """From an empty store: no layer of the old image is built again."""
    options, changes, upgrade = CASES[case]
    desk = ground.desk("extend")
    (desk / "note.txt").write_text("a note\n")
    ground.own(desk)
    said = run(ground, desk, "extend", ground.place / "tiny.sif", *options, "-o", "new.sif")
    assert "build layer base" not in said
    expected = built(ground, desk, changes, upgrade)
    manifest = inspected(ground, desk, desk / "new.sif")
    assert manifest == inspected(ground, desk, expected)
    assert root_of(desk / "new.sif", manifest) == root_of(expected, manifest)
    again = run(ground, desk, "build", "more.yaml", "-o", "new.sif", store="other")
    assert "is up to date" in again
    assert (ground.place / "tiny.sif").read_bytes() == ground.reference


@pytest.mark.slow  # it is what build makes of the extended spec: all at once has it
@pytest.mark.usefixtures("wheels")
def test_a_second_extension_continues(ground: Ground, tmp_path: Path) -> None:
    desk = ground.desk("twice")
    run(ground, desk, "extend", ground.place / "tiny.sif", "--python", "delta", "-o", "one.sif")
    said = run(ground, desk, "extend", "one.sif", "--python", "gamma", "-o", "two.sif")
    assert "read one.sif: done" in said
    expected = built(ground, desk, {"python": ["delta", "gamma"]})
    assert inspected(ground, desk, desk / "two.sif") == inspected(ground, desk, expected)
    note = json.loads(run(ground, desk, "extend", "--show", "--json", "two.sif"))
    before, now = note["extensions"]
    assert [package["name"] for package in before["packages"]] == ["delta"]
    assert [package["name"] for package in now["packages"]] == ["gamma"]
    assert now["digest"] == inspected(ground, desk, desk / "one.sif")["digest"]
    # Each image carries the facts of its own files and lock.
    for path in (ground.place / "tiny.sif", desk / "two.sif"):
        with ImageFile.open(path) as image:
            carried = carried_facts(image)
        assert carried == run_preflight(scan_image(path, Store(tmp_path / "store"))).facts
    assert carried is not None
    assert carried["packages.gamma"].value == "1.0"


@pytest.mark.usefixtures("wheels")
def test_what_was_added_starts(ground: Ground) -> None:
    desk = ground.desk("start")
    words = ["--python", "gamma", "--env", "GREETING=hi"]
    run(ground, desk, "extend", ground.place / "tiny.sif", *words, "-o", "new.sif")
    script = "import gamma, delta, alpha, os; print(os.environ['GREETING'])"
    line = [*ground.as_owner(), "apptainer", "exec", str(desk / "new.sif"), "python", "-c", script]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "hi\n"


@pytest.mark.usefixtures("wheels")
@pytest.mark.slow  # unit/activate has the names of modules
def test_its_module_does_not_replace_that_of_the_old_image(ground: Ground) -> None:
    desk = ground.desk("modules")
    for name in ("delta", "alpha"):
        run(ground, desk, "extend", ground.place / "tiny.sif", "--python", name, "-o", f"{name}.sif")
    install = ["module", "install", "--root", "modules"]
    run(ground, desk, *install, ground.place / "tiny.sif")
    listed = ["module", "ls", "--root", "modules", "--json"]
    before = run(ground, desk, *listed)
    label = json.loads(before)[0]["module"]
    name, _, version = label.partition("/")
    said = run(ground, desk, *install, "delta.sif", code=2)
    assert f"`delta.sif` was extended, and the module {label} has another image" in said
    assert run(ground, desk, *listed) == before
    run(ground, desk, *install, "delta.sif", "--version", "delta")
    modules = {module["module"] for module in json.loads(run(ground, desk, *listed))}
    assert modules == {label, f"{name}/delta"}
    # By its name, and one extended image after another.
    run(ground, desk, *install, "delta.sif", "--version", version)
    run(ground, desk, *install, "alpha.sif")
    digest = inspected(ground, desk, desk / "alpha.sif")["digest"]
    assert digest in {module["digest"] for module in json.loads(run(ground, desk, *listed))}


@pytest.mark.usefixtures("wheels")
def test_what_the_spec_asks_for_still_holds(ground: Ground) -> None:
    desk = ground.desk("bound")
    (desk / "bound.yaml").write_text(ground.spec.read_text().replace("alpha", "alpha<2"))
    ground.own(desk)
    run(ground, desk, "build", "bound.yaml")
    words = ["extend", "bound.sif", "--upgrade", "alpha", "--python", "alpha>=2"]
    said = run(ground, desk, *words, code=2)
    assert "alpha" in said
    assert sorted(path.name for path in desk.glob("*.sif")) == ["bound.sif"]


def test_an_image_that_is_replaced_meanwhile(ground: Ground, tmp_path: Path) -> None:
    """The image that was opened is extended."""
    image, new, same = tmp_path / "image.sif", tmp_path / "new.sif", tmp_path / "same.sif"
    shutil.copy(ground.place / "tiny.sif", image)
    (tmp_path / "other.sif").write_text("another file")

    def replacing(event: Event) -> None:
        if isinstance(event, TaskStarted) and event.task == "write":
            (tmp_path / "other.sif").replace(image)

    request = ExtendRequest(image=image, environment=["A=b"], output=same)
    extend_image(request, Settings.of(store=tmp_path / "store"))
    settings = Settings.of(store=tmp_path / "store", emit=replacing)
    extend_image(replace(request, output=new), settings)
    assert image.read_text() == "another file"
    assert new.read_bytes() == same.read_bytes()


def test_a_changed_image_is_refused(ground: Ground) -> None:
    desk = ground.desk("changed")
    image = bytearray(ground.reference)
    manifest = inspected(ground, desk, ground.place / "tiny.sif")
    image[32768 + manifest["file_system"]["tables_offset"] + 100] ^= 1
    (desk / "changed.sif").write_bytes(image)
    ground.own(desk)
    said = run(ground, desk, "extend", "changed.sif", "--env", "A=b", code=2)
    assert "`changed.sif`" in said
    assert sorted(path.name for path in desk.glob("*.sif")) == ["changed.sif"]


@pytest.mark.parametrize("image", ["tiny.sif", pytest.param("of-another-tool.sqfs", marks=pytest.mark.slow)])
def test_new_layers_with_one_path(image: str, ground: Ground) -> None:
    """Of two wheels the later one's file is taken, with a warning; all else is refused, as by `build`."""
    desk, site = ground.desk("conflicts"), "/opt/env/lib/python3.11/site-packages"
    if image != "tiny.sif":
        site = "/usr/local/lib/python3.11/dist-packages"
        (desk / "root" / site.lstrip("/")).mkdir(parents=True)
        subprocess.run(["tar", "-C", desk / "root", "-xf", ground.place / "root.tar"], check=True)
        packing = ["-quiet", "-no-progress", "-comp", "lz4"]
        subprocess.run(["mksquashfs", desk / "root", ground.place / image, *packing], check=True)
    for name, files in (
        ("first", {"first.py": "", "both.py": "A = 1\n"}),
        ("second", {"both.py": "A = 22\n"}),
        ("third", {"first.py/x.py": ""}),
    ):
        make_wheel(ground.place / "wheels", f"{name}-1.0-py3-none-any.whl", **files)
    (desk / "note.txt").write_text("a note\n")
    ground.own(ground.place)
    words: list[str | Path] = ["extend", ground.place / image, "-o", "new", "--python", "first"]
    said = run(ground, desk, *words, "--python", "second")
    assert f"warning: first and second both bring `{site}/both.py`: that of second is taken" in said
    line = [*ground.as_owner(), "apptainer", "exec", str(desk / "new"), "cat", f"{site}/both.py"]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "A = 22\n"
    (desk / "new").unlink()
    conflict = f"{site}/first.py: wheel:first and wheel:third"
    assert conflict in run(ground, desk, *words, "--python", "third", code=3)
    for target in (f"{site}/both.py", f"{site}/both.py/x"):
        # In an image of envbuild no file may go there at all.
        reserved = image == "tiny.sif"
        said = run(ground, desk, *words, "--file", f"note.txt:{target}", code=2 if reserved else 3)
        assert ("/opt/env is reserved" if reserved else f"{site}/both.py: wheel:first and files") in said
    note = ["--file", "note.txt:/opt/note"]
    for target, problem in (
        ("/opt/note", "two files have the target `/opt/note`"),
        ("/opt/note/x", "`/opt/note` and `/opt/note/x`: one file cannot lie in the other"),
    ):
        assert problem in run(ground, desk, *words, *note, "--file", f"tiny.yaml:{target}", code=2)
    assert not (desk / "new").exists()


def reproduced(ground: Ground, desk: Path, image: str, *words: str, code: int = 0) -> dict[str, Any]:
    """Reproduce an image from what it carries; return the report."""
    done = ground.run(["reproduce", image, "--json", *words], desk, store=desk / "other")
    assert done.returncode == code, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow  # resolve/test_offline reproduces images
@pytest.mark.usefixtures("wheels")
def test_extended_images_are_reproduced(ground: Ground) -> None:
    desk = ground.desk("reproduce")
    (desk / "note.txt").write_text("a note\n")
    write_wheel(desk / "named", "named", "1.0")
    (named,) = (desk / "named").glob("*.whl")
    write_wheel(desk / "kept/wheels", "named", "1.0")
    ground.own(desk)
    tiny = ground.place / "tiny.sif"
    run(ground, desk, "extend", tiny, "--env", "A=b", "-o", "variable.sif")
    run(ground, desk, "extend", tiny, "--file", "note.txt:/opt/data/note.txt", "-o", "file.sif")
    run(ground, desk, "extend", tiny, "--python", "gamma", "--upgrade", "alpha", "-o", "packages.sif")
    run(ground, desk, "extend", "file.sif", "--like", "packages.sif", "-o", "like.sif")
    run(ground, desk, "extend", "variable.sif", "--wheel", named, "-o", "twice.sif")
    for name in ("packages", "like", "twice"):
        report = reproduced(ground, desk, f"{name}.sif", "--from", "kept")
        assert (report["same"], report["identical"], report["differences"]) == (True, True, []), name


@pytest.mark.slow
@pytest.mark.usefixtures("wheels")
def test_an_image_extended_with_other_tools_is_reproduced(ground: Ground) -> None:
    desk = ground.desk("tools")
    # Another version that makes the same bytes.
    package = Path(str(zstandard.__file__)).parent
    (information,) = package.parent.glob("zstandard-*.dist-info")
    other = desk / "replaced/zstandard-9.9.dist-info"
    shutil.copytree(package, desk / "replaced/zstandard")
    shutil.copytree(information, other)
    metadata = (other / "METADATA").read_text()
    (other / "METADATA").write_text(re.sub(r"(?m)^Version: .*", "Version: 9.9", metadata))
    ground.own(desk)
    env = {"PYTHONPATH": str(desk / "replaced")}
    words: list[str | Path] = ["extend", ground.place / "tiny.sif", "--python", "delta", "-o", "new.sif"]
    done = ground.run(words, desk, env=env)
    assert done.returncode == 0, done.stderr
    assert "the new layers are made by another zstandard" in done.stderr
    run(ground, desk, "extend", "new.sif", "--python", "gamma", "-o", "again.sif")
    for image in ("new.sif", "again.sif"):
        report = reproduced(ground, desk, image)
        assert (report["same"], report["differences"]) == (True, [])
        assert [text for text in report["tools"] if "zstandard" in text and "9.9" in text]
