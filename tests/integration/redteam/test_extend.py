"""`extend` runs the Python of a stranger's image in sandboxes: it decides its own bytecode, nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from envbuild.image.compose import FinishedLayer
from envbuild.image.sif import LOCK, PLAN
from envbuild.lock.text import load
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import splice
from envbuild.system.squashfs import digests
from tests.support.images import compose_layers, read_data, read_manifest
from tests.support.mirrors import write_wheel
from tests.support.torture.ground import Ground

pytestmark = pytest.mark.redteam

# The image's Python: it runs another script than the one it was given.
WRAPPER = """\
#!/usr/bin/python3.11.real
import os, sys
words = sys.argv[1:]
script = words.index("-c") + 1 if "-c" in words else 0
if script and "marshal" in words[script]:
    {attack}
os.execv("/usr/bin/python3.11.real", [sys.argv[0], *words])
"""
# Takes the place of the tree by a link to a directory of the host, wherever it may write.
LINK = """
    for place in ("/mnt/tree", "/mnt/0", "/mnt/tree/usr", "/mnt"):
        try:
            os.rename(place, place + "-was")
            os.symlink({target!r}, place)
        except OSError:
            pass
"""
# Leaves files of its own wherever it may.
LITTER = """
    for directory, _, files in os.walk("/mnt"):
        for path in [directory + "/litter", *(directory + "/" + name for name in files)]:
            try:
                open(path, "a").write("import os")
            except OSError:
                pass
"""
FLOOD = """
    while True:
        os.write(1, b"x" * 65536)
"""
FLOOD_ERRORS = """
    while True:
        os.write(2, b"x" * 65536)
"""
HUNGRY = """
    hoard = [bytes(1 << 30) for _ in range(64)]
"""
# The bytecode says something that no wheel says.
PLANT = """
    words[script] = words[script].replace(
        "return file.read(size)", "return file.read(size) + b'\\\\nprint(\\"planted\\")\\\\n'"
    )
"""


@pytest.fixture(scope="module")
def stranger(ground: Ground) -> Path:
    """A directory with the root of a stranger's image, whose Python is wrapped."""
    write_wheel(ground.place / "wheels", "gamma", "1.0")
    directory = ground.place / "stranger"
    root = directory / "root"
    root.mkdir(parents=True)
    subprocess.run(["tar", "-C", root, "-xf", ground.place / "root.tar"], check=True)
    (root / "usr/local/lib/python3.11/dist-packages").mkdir(parents=True, exist_ok=True)
    (root / "usr/bin/python3.11").rename(root / "usr/bin/python3.11.real")
    ground.own(directory)
    return directory


def wrapped(stranger: Path, attack: str) -> Path:
    """Return a squashfs whose Python attacks while it compiles."""
    python = stranger / "root/usr/bin/python3.11"
    python.write_text(WRAPPER.format(attack=attack.strip()))
    python.chmod(0o755)
    image = stranger / "image.sqfs"
    image.unlink(missing_ok=True)
    subprocess.run(
        ["mksquashfs", stranger / "root", image, "-quiet", "-no-progress", "-all-root", "-comp", "gzip"],
        check=True,
        capture_output=True,
    )
    return image


def extend(ground: Ground, desk: Path, image: Path, *words: str, store: str = "store") -> tuple[int, str]:
    done = ground.run(
        ["extend", image, "--python", "gamma", "-o", desk / "new.sqfs", *words], desk, store=desk / store
    )
    return done.returncode, done.stdout + done.stderr


def test_no_file_of_the_host_is_written(stranger: Path, ground: Ground) -> None:
    home = ground.desk("home")
    (home / "authorized_keys").write_text("mine\n")
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    image = wrapped(stranger, LINK.format(target=str(home)))
    desk = ground.desk("linked")
    code, said = extend(ground, desk, image, "--file", f"{ground.spec}:/authorized_keys", "--env", "A=b")
    assert code == 0, said
    assert {path.name: path.read_bytes() for path in home.iterdir()} == before
    assert "/home" not in said
    shown = subprocess.run(
        ["unsquashfs", "-ll", desk / "new.sqfs"], capture_output=True, text=True, check=True
    )
    assert str(home) not in shown.stdout
    assert "squashfs-root/authorized_keys\n" in shown.stdout


@pytest.mark.slow  # `make redteam` has it
def test_the_image_gains_what_the_wheels_hold_and_nothing_else(stranger: Path, ground: Ground) -> None:
    desks = [ground.desk("littered"), ground.desk("honest")]
    listings = []
    for desk, attack in zip(desks, (LITTER, "pass"), strict=True):
        code, said = extend(ground, desk, wrapped(stranger, attack))
        assert code == 0, said
        unsquashed = desk / "shown"
        subprocess.run(
            ["unsquashfs", "-quiet", "-no-progress", "-d", unsquashed, desk / "new.sqfs", "usr/local", "opt"],
            check=True,
            capture_output=True,
        )
        listings.append(
            {
                str(path.relative_to(unsquashed)): path.read_bytes()
                for path in unsquashed.rglob("*")
                if path.is_file()
            }
        )
    assert listings[0] == listings[1]
    assert any(name.endswith("gamma.cpython-311.pyc") for name in listings[0])


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (FLOOD, "does not compile modules: it sent"),
        (FLOOD_ERRORS, r"could not be compiled \(it printed too much\)"),
        (HUNGRY, r"could not be compiled \(exit code"),
    ],
    ids=["output", "errors", "memory"],
)
@pytest.mark.slow  # `make redteam` has it
def test_what_an_image_takes_is_bounded(attack: str, reason: str, stranger: Path, ground: Ground) -> None:
    desk = ground.desk("bounded")
    line = ground.line(["extend", wrapped(stranger, attack), "--python", "gamma", "-o", desk / "new.sqfs"])
    measured = ["/usr/bin/python3", "-c", MEASURED, *line]
    done = subprocess.run(
        measured, cwd=desk, env=ground.environment(desk / "store"), capture_output=True, text=True
    )
    *_, peak_kb = done.stdout.split()
    assert done.returncode == 3, done.stderr
    assert re.search(reason, done.stderr), done.stderr
    assert int(peak_kb) < 400_000, "memory of the largest process, in kB"
    assert sum(path.stat().st_size for path in (desk / "store").rglob("*") if path.is_file()) < 8 << 20
    assert not (desk / "new.sqfs").exists()
    assert "importlib" not in done.stderr, "a script of ours says nothing to a user"


@pytest.mark.slow  # `make redteam` has it
def test_metadata_that_does_not_end_is_an_error_of_the_image(stranger: Path, ground: Ground) -> None:
    info = stranger / "root/usr/local/lib/python3.11/dist-packages/bomb-1.dist-info"
    info.mkdir()
    lines = [f"Requires-Dist: a{number}\n" for number in range(20_000)]
    (info / "METADATA").write_text("".join(["Metadata-Version: 2.1\nName: bomb\nVersion: 1\n", *lines]))
    try:
        code, said = extend(ground, ground.desk("metadata"), wrapped(stranger, "pass"))
    finally:
        shutil.rmtree(info)
    assert code == 2, said
    assert "image.sqfs" in said
    assert "bomb-1.dist-info/METADATA` has more than 10000 lines of metadata" in said


MEASURED = """\
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def forged(ground: Ground, desk: Path) -> Path:
    """Return an image that says it is one of a build's, with a wrapped Python in its base."""
    honest, out = desk / "tiny.sif", desk / "strangers.sif"
    manifest = read_manifest(honest)
    layers = []
    for layer in manifest.file_system.layers if manifest.file_system else ():
        digest = layer.digest.partition(":")[2]
        blob = desk / f"store/blobs/sha256/{digest[:2]}/{digest}"
        if layer.name == "base":
            blob = wrapped_base(blob, desk)
        sums = digests(blob)
        layers.append(
            FinishedLayer(name=layer.name, blob=blob, digest=sums.whole, data=sums.data, tables=sums.tables)
        )
    lock = load(read_data(honest, LOCK), honest)
    plan = read_data(honest, PLAN).decode()
    edited = manifest.model_copy(update={"file_system": None})
    compose_layers(out, layers, manifest=edited, lock=lock, plan=plan)
    ground.own(desk)
    return out


def wrapped_base(blob: Path, desk: Path) -> Path:
    top = desk / "top/usr/bin"
    top.mkdir(parents=True)
    (top / "python3.11").write_text(WRAPPER.format(attack=PLANT.strip()))
    real = subprocess.run(
        ["unsquashfs", "-cat", blob, "usr/bin/python3.11"], capture_output=True, check=True
    ).stdout
    (top / "python3.11.real").write_bytes(real)
    for path in top.iterdir():
        path.chmod(0o755)
    added = desk / "top.sqfs"
    subprocess.run(
        [
            "mksquashfs",
            desk / "top",
            added,
            "-quiet",
            "-no-progress",
            "-all-root",
            "-no-xattrs",
            "-comp",
            "zstd",
        ],
        check=True,
        capture_output=True,
    )
    out = desk / "base.sqfs"
    with blob.open("rb") as lower, added.open("rb") as upper:
        trees = {
            "a": Squashfs(lower, 0, blob.stat().st_size),
            "b": Squashfs(upper, 0, added.stat().st_size),
        }
        spliced = splice(trees, keep_directories=True)
        file = os.open(out, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            spliced.write(file, 0)
        finally:
            os.close(file)
    return out


def printed(ground: Ground, image: Path) -> str:
    """Return what the import of a package in an image prints."""
    words = ["apptainer", "--silent", "exec", "--containall", str(image), "python", "-c", "import gamma"]
    done = subprocess.run([*ground.as_owner(), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_with_gamma(ground: Ground, desk: Path, store: str) -> Path:
    """Build the honest spec of the reference with one more package."""
    (desk / "mine.yaml").write_text(ground.spec.read_text().replace("beta]", "beta, gamma]"))
    shutil.copy(ground.place / "tiny.lock.yaml", desk / "mine.lock.yaml")
    ground.own(desk)
    done = ground.run(["build", "mine.yaml", "-o", desk / f"{store}.sif"], desk, store=desk / store)
    assert done.returncode == 0, done.stderr
    return desk / f"{store}.sif"


@pytest.mark.parametrize(
    "has_base",
    [
        pytest.param(False, id="fresh store", marks=pytest.mark.slow),
        pytest.param(True, id="store with the base", marks=pytest.mark.slow),
    ],
)
def test_no_layer_for_others_holds_what_the_python_of_an_image_made(
    has_base: bool, stranger: Path, ground: Ground
) -> None:
    desk = ground.desk("poison")
    done = ground.run(ground.build(), desk)
    assert done.returncode == 0, done.stderr
    image, store = forged(ground, desk), "store" if has_base else "other"
    done = ground.run(["extend", image, "--python", "gamma", "-o", desk / "x.sif"], desk, store=desk / store)
    assert done.returncode == 0, done.stderr
    assert printed(ground, desk / "x.sif") == ("" if has_base else "planted\n")
    if not has_base:
        assert not list((desk / store / "layers").rglob("*.json")), "another build would take such a layer"
    mine = build_with_gamma(ground, desk, store)
    assert printed(ground, mine) == ""
    assert mine.read_bytes() == build_with_gamma(ground, desk, "honest").read_bytes()
