"""Images of anyone gain packages, files and variables, and keep all else as it was."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from envbuild.image.file import ImageFile
from envbuild.system.host import architecture
from tests.support.elves import Elf
from tests.support.images import read_sif
from tests.support.mirrors import write_wheel
from tests.support.squashfs_images import (
    assert_kernel_accepts,
    list_with_unsquashfs,
    read_with_rdsquashfs,
    read_with_us,
)
from tests.support.torture.ground import Ground
from tests.support.wheels import make_wheel

SITE = "/usr/local/lib/python3.11/dist-packages"
REQUESTS = ["--python", "gamma", "--env", "GREETING=it's me", "--file", "note.txt:/lib/data/note.txt"]
# What these add; `/lib` is a link.
ADDED = {
    "/.envbuild",
    "/.envbuild/extend.json",
    "/.singularity.d/env/92-envbuild.sh",
    "/usr/lib/data",
    "/usr/lib/data/note.txt",
    *(f"{SITE}/{name}.py" for name in ("gamma", "delta")),
    f"{SITE}/__pycache__",
    *(f"{SITE}/__pycache__/{name}.cpython-311.pyc" for name in ("gamma", "delta")),
    *(
        f"{SITE}/{info}.dist-info{name}"
        for info in ("gamma-1.0", "delta-0.5")
        for name in ("", "/METADATA", "/WHEEL", "/RECORD", "/INSTALLER", "/filler")
    ),
}
# Image → how mksquashfs packs it.
PACKED = {
    "gzip.sqfs": ["-comp", "gzip"],
    "xz.sqfs": ["-comp", "xz"],
    "xz-large.sqfs": ["-comp", "xz", "-b", "1M", "-Xdict-size", "50%"],
    "lz4.sqfs": ["-comp", "lz4", "-Xhc"],
    "zstd.sqfs": ["-comp", "zstd", "-Xcompression-level", "5"],
}
# As images of Spack and EasyBuild have it.
SPACK = "/opt/spack/lib/python3.11/site-packages"
WITH_PYTHONPATH = f"""\
Bootstrap: localimage
From: {{image}}

%environment
    export PYTHONPATH=/opt/first:{SPACK}
"""
FORMS_TOO_MANY = ("gzip.sqfs", "xz.sqfs", "xz-large.sqfs", "lz4.sqfs", "zstd.sqfs")


@pytest.fixture(scope="module")
def foreign(ground: Ground) -> Callable[[str], Path]:
    """Make an image of a root, as others make theirs."""
    for name, version, requires in (("gamma", "1.0", ["delta"]), ("delta", "0.5", [])):
        write_wheel(ground.place / "wheels", name, version, requires=requires)
    directory = ground.place / "foreign"
    directory.mkdir()
    root = directory / "root"
    root.mkdir()
    subprocess.run(["tar", "-C", root, "-xf", ground.place / "root.tar"], check=True)
    (root / SITE.lstrip("/")).mkdir(parents=True, exist_ok=True)
    ground.own(directory)

    def tool(*words: str | Path, **options: object) -> None:
        subprocess.run(
            [*ground.as_owner(), *map(str, words)],
            check=True,
            capture_output=True,
            **options,  # type: ignore[call-overload]
        )

    @cache
    def make(name: str) -> Path:
        path = directory / name
        if name == "built.sif":
            tool("apptainer", "build", path, root)
        elif name == "paths.sif":
            recipe = directory / "paths.def"
            recipe.write_text(WITH_PYTHONPATH.format(image=make("built.sif")))
            ground.own(directory)
            tool("apptainer", "build", path, recipe)
        elif name == "odd.sqfs":
            tool(
                "tar2sqfs", "--quiet", "--no-skip", "--exportable", "-c", "gzip", path, input=odd_tar(ground)
            )
        else:
            tool("mksquashfs", root, path, "-quiet", "-no-progress", "-all-root", *PACKED[name])
        return path

    return make


def odd_tar(ground: Ground) -> bytes:
    """Return the root with extended attributes, many owners, devices and hard links."""
    content = io.BytesIO((ground.place / "root.tar").read_bytes())
    with tarfile.open(fileobj=content, mode="a", format=tarfile.PAX_FORMAT) as archive:
        for number in range(300):
            member = tarfile.TarInfo(f"srv/of-{number}")
            member.uid, member.gid, member.mtime, member.size = number * 100, number, 10**9 + number, 4
            member.pax_headers = {"SCHILY.xattr.user.note": f"{number % 7}"}
            archive.addfile(member, io.BytesIO(b"%04d" % number))
        for name, kind, device in (("null", tarfile.CHRTYPE, (1, 3)), ("disk", tarfile.BLKTYPE, (8, 1))):
            member = tarfile.TarInfo(f"srv/{name}")
            member.type, member.mode, (member.devmajor, member.devminor) = kind, 0o660, device
            archive.addfile(member)
        member = tarfile.TarInfo("srv/linked")
        member.type, member.linkname = tarfile.LNKTYPE, "srv/of-7"
        archive.addfile(member)
        archive.addfile(tarfile.TarInfo(SITE.lstrip("/") + "/present.py"))
    return content.getvalue()


@pytest.fixture
def work(ground: Ground) -> Path:
    work = ground.desk("foreign")
    (work / "note.txt").write_text("a note\n")
    ground.own(work)
    return work


def extend(ground: Ground, work: Path, *words: str | Path, code: int = 0) -> str:
    done = ground.run(["extend", *words], work)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def shown_by_unsquashfs(image: Path, scratch: Path) -> dict[str, tuple[object, ...]]:
    with ImageFile.open(image) as opened:
        shown = list_with_unsquashfs(image, scratch / "u", opened.root.offset)
    subprocess.run(["rm", "-rf", scratch / "u"], check=True)
    return shown


def root_of(image: Path, scratch: Path) -> Path:
    """Return the file system of an image as a file."""
    path = scratch / f"{image.name}.root"
    with ImageFile.open(image) as opened:
        path.write_bytes(opened.read(opened.root.offset, opened.root.size_bytes))
    return path


@pytest.mark.parametrize(
    "name",
    [
        # In `make test` the other forms of a squashfs are read and written.
        *(pytest.param(name, marks=pytest.mark.slow) if name in FORMS_TOO_MANY else name for name in PACKED),
        pytest.param("odd.sqfs", marks=pytest.mark.slow),
        pytest.param("built.sif", marks=pytest.mark.slow),
    ],
)
def test_all_that_was_there_stays_as_it_was(
    name: str, foreign: Callable[[str], Path], ground: Ground, work: Path, tmp_path: Path
) -> None:
    old, new = foreign(name), work / f"new{Path(name).suffix}"
    digest = hashlib.sha256(old.read_bytes()).hexdigest()
    extend(ground, work, old, *REQUESTS, "-o", new)
    assert hashlib.sha256(old.read_bytes()).hexdigest() == digest
    before, after = shown_by_unsquashfs(old, tmp_path), shown_by_unsquashfs(new, tmp_path)
    # Variables of a bare squashfs stand there for runtimes that source no scripts.
    table = {"/etc/environment"} if old.suffix == ".sqfs" else set()
    # Apptainer's own files come with the variables.
    added = {path for path in after.keys() - before.keys() if not path.startswith("/.singularity.d")} - table
    expected = {path for path in ADDED if not path.startswith("/.singularity.d")}
    assert added == expected
    changed = table & before.keys()
    assert {path for path in before if after.get(path) != before[path]} == changed
    roots = [root_of(image, tmp_path) for image in (old, new)]
    ours = [read_with_us(root) for root in roots]
    assert {path for path in ours[0] if ours[1].get(path) != ours[0][path]} == changed
    independent = [read_with_rdsquashfs(root, tmp_path / f"r{number}") for number, root in enumerate(roots)]
    assert {path for path in independent[0] if independent[1].get(path) != independent[0][path]} == changed
    assert_kernel_accepts(roots[1])
    script = (
        "import gamma, importlib.metadata as m; print(m.version('delta'), open('/lib/data/note.txt').read())"
    )
    words = [
        "apptainer",
        "--silent",
        "exec",
        str(new),
        "sh",
        "-c",
        f'echo "$GREETING"; python3 -c "{script}"',
    ]
    started = subprocess.run([*ground.as_owner(), *words], capture_output=True, text=True, check=True)
    assert started.stdout.split() == ["it's", "me", "0.5", "a", "note"]


def test_descriptors_of_a_sif_stay(foreign: Callable[[str], Path], ground: Ground, work: Path) -> None:
    old = foreign("built.sif")
    extend(ground, work, old, "--env", "A=b", "-o", "new.sif")
    contents = []
    for path in (old, work / "new.sif"):
        sif = read_sif(path)
        data = path.read_bytes()
        contents.append(
            [
                (one.number, one.kind, one.group, one.link, one.name, data[one.offset : one.end])
                for one in sif.objects[:-1]
            ]
        )
    assert contents[0] == contents[1]
    listed = subprocess.run(
        ["apptainer", "sif", "list", work / "new.sif"], capture_output=True, text=True, check=True
    )
    assert "Squashfs/*System" in listed.stdout


@pytest.mark.slow  # extend/test_own_images compares the bytes of extensions
def test_the_same_request_gives_the_same_bytes(
    foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    old = foreign("gzip.sqfs")
    for name in ("one.sqfs", "two.sqfs"):
        extend(ground, work, old, *REQUESTS, "-o", name)
    assert (work / "one.sqfs").read_bytes() == (work / "two.sqfs").read_bytes()
    extend(ground, work, old, *REQUESTS, "-o", "one.sqfs")
    said = extend(ground, work, old, "--python", "delta", "-o", "one.sqfs", code=2)
    assert "`one.sqfs` already exists" in said
    assert (work / "one.sqfs").read_bytes() == (work / "two.sqfs").read_bytes()


@pytest.mark.slow  # in `make test` extend/test_own_images.py has two in a row
@pytest.mark.parametrize("count", [3, 10])
def test_extensions_in_a_row(
    count: int, foreign: Callable[[str], Path], ground: Ground, work: Path, tmp_path: Path
) -> None:
    before = shown_by_unsquashfs(foreign("gzip.sqfs"), tmp_path)
    image = foreign("gzip.sqfs")
    for number in range(count):
        write_wheel(ground.place / "wheels", f"row{number}", "1.0")
        extend(ground, work, image, "--python", f"row{number}", "-o", f"{number}.sqfs")
        image = work / f"{number}.sqfs"
    after = shown_by_unsquashfs(image, tmp_path)
    assert {path: after.get(path) for path in before} == before
    note = json.loads(extend(ground, work, "--show", "--json", image))
    names = [f"row{number}" for number in range(count)]
    assert [extension["packages"][0]["name"] for extension in note["extensions"]] == names


@pytest.mark.slow  # test_foreign.py and test_own_images.py extend other images
def test_a_new_base_gets_what_the_old_one_got(
    foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    write_wheel(ground.place / "wheels", "moving", "1.0")
    extend(ground, work, foreign("gzip.sqfs"), *REQUESTS, "--python", "moving", "-o", "mine.sqfs")
    write_wheel(ground.place / "wheels", "moving", "1.1")
    said = extend(ground, work, foreign("zstd.sqfs"), "--like", "mine.sqfs", "-o", "new.sqfs")
    assert "unlike before: moving 1.0 → 1.1" in said
    notes = [json.loads(extend(ground, work, "--show", "--json", name)) for name in ("mine.sqfs", "new.sqfs")]
    mine, new = (note["extensions"][-1] for note in notes)
    assert mine["requests"] == new["requests"]
    assert new["image"] == "zstd.sqfs"


@pytest.mark.slow  # unit/extend/test_packages hides old files
def test_another_version_hides_the_old_files(
    foreign: Callable[[str], Path], ground: Ground, work: Path, tmp_path: Path
) -> None:
    write_wheel(ground.place / "wheels", "changing", "1.0")
    extend(ground, work, foreign("gzip.sqfs"), "--python", "changing==1.0", "-o", "one.sqfs")
    write_wheel(ground.place / "wheels", "changing", "2.0")
    said = extend(ground, work, "one.sqfs", "--python", "changing==2.0", "-o", "two.sqfs", code=2)
    assert "--upgrade changing" in said
    extend(ground, work, "one.sqfs", "--python", "changing==2.0", "--upgrade", "changing", "-o", "two.sqfs")
    shown = shown_by_unsquashfs(work / "two.sqfs", tmp_path)
    names = {Path(path).name for path in shown if "changing" in path}
    assert {"changing-2.0.dist-info", "changing.py", "changing.cpython-311.pyc"} <= names
    assert not any("changing-1.0" in path for path in shown)


def test_a_killed_run_leaves_the_old_image_and_nothing_for_long(
    foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    old = foreign("gzip.sqfs")
    digest = hashlib.sha256(old.read_bytes()).hexdigest()
    for number in range(1, 12, 2):
        words = ground.line(["extend", old, *REQUESTS, "-o", "new.sqfs"])
        line = ["timeout", "-s", "KILL", str(number / 4), *words]
        with ground.start(line, work) as running:
            running.communicate()
        assert running.returncode in (0, 124, 137, -signal.SIGKILL)
        assert hashlib.sha256(old.read_bytes()).hexdigest() == digest
    extend(ground, work, old, *REQUESTS, "-o", "new.sqfs")
    left = {path.name for path in work.iterdir()} - {"tiny.yaml", "tiny.lock.yaml", "note.txt", "store"}
    assert left == {"new.sqfs"}
    assert list((work / "store/stage").iterdir()) == []


@pytest.mark.slow  # unit/activate has modules of images of other tools
@pytest.mark.parametrize("link", [[], ["--link"]])
def test_it_becomes_a_module(
    link: list[str], foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    extend(ground, work, foreign("built.sif"), "--python", "gamma", "-o", "centre.sif")
    done = ground.run(["module", "install", "centre.sif", "--root", "modules", *link, "--version", "2"], work)
    assert done.returncode == 0, done.stderr
    python = work / "modules/envs/centre/2/bin/python3"
    line = [*ground.as_owner(), str(python), "-c", "import gamma; print('there')"]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "there\n"
    # Its Python has no pip.
    names = {"python", "python3", "envbuild-exec", "envbuild-shell", "launcher"}
    assert {path.name for path in python.parent.iterdir()} == names
    # It has a verdict as an image of a spec.
    required = ["module", "install", "centre.sif", "--root", "other", "--require-pass"]
    done = ground.run(required, work)
    assert (done.returncode, "UNTESTED (never tested here)" in done.stderr) == (4, True)
    done = ground.run(["test", "centre.sif"], work)
    assert done.returncode == 0, done.stderr
    for words in (["status", "centre.sif"], ["status", "--all", "modules"]):
        done = ground.run(words, work)
        assert (done.returncode, done.stdout.split()[0]) == (0, "PASS"), done.stdout
    assert ground.run(required, work).returncode == 0
    started = work / "modules/envs/centre/2/image.sif" if not link else work / "centre.sif"
    with started.open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-5000, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    done = ground.run(["status", "--all", "modules"], work)
    assert (done.returncode, done.stdout.split()[0]) == (4, "CHANGED"), done.stdout
    with started.open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        file.write(byte)
    bill = json.loads(ground.run(["sbom", "centre.sif"], work).stdout)
    assert {one["name"] for one in bill["components"]} == {"built.sif", "gamma", "delta"}
    assert "gamma 1.0" in ground.run(["inspect", "centre.sif"], work).stdout


@pytest.mark.slow  # unit/extend chooses the Python
def test_the_python_that_was_named_gets_the_packages_and_starts(
    foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    root = work / "two"
    subprocess.run(["cp", "-a", foreign("gzip.sqfs").parent / "root", root], check=True)
    home, python = root / "opt/other", "/opt/other/bin/python3"
    site = home / "lib/python3.11/site-packages"
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (site / "pip").mkdir(parents=True)
    (site / "pip/__main__.py").write_text("import sys; print('pip of', sys.executable)\n")
    (site / "pip/__init__.py").touch()
    subprocess.run(["mksquashfs", root, work / "two.sqfs", "-quiet", "-no-progress"], check=True)
    ground.own(work)
    extend(ground, work, "two.sqfs", "--python", "gamma", "--python-executable", python, "-o", "new.sqfs")
    assert f"python:      {python}" in ground.run(["extend", "--show", "new.sqfs"], work).stdout
    assert f"python:      {python}" in ground.run(["inspect", "new.sqfs"], work).stdout
    done = ground.run(["module", "install", "new.sqfs", "--root", "modules"], work)
    assert done.returncode == 0, done.stderr
    commands = work / "modules/envs/new/1/bin"
    for name, words, expected in (
        ("python", ["-c", "import gamma, sys; print(sys.executable)"], python),
        ("python3", ["-c", "import gamma, sys; print(sys.executable)"], python),
        ("pip", ["list"], f"pip of {python}"),
    ):
        line = [*ground.as_owner(), str(commands / name), *words]
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == f"{expected}\n"


@pytest.fixture
def extended(foreign: Callable[[str], Path], ground: Ground, work: Path) -> Callable[..., Path]:
    """Extend an image by a wheel with these modules."""

    def make(code: int = 0, **modules: str | bytes) -> Path:
        path = make_wheel(work, "demo-1.0-py3-none-any.whl", **modules)
        extend(ground, work, foreign("built.sif"), "--wheel", path, "-o", "mine.sif", code=code)
        return work / "mine.sif"

    return make


def judged(ground: Ground, work: Path, command: str, *words: str, code: int) -> dict[str, Any]:
    """Check or test `mine.sif`; return its JSON."""
    done = ground.run([command, "mine.sif", "--json", *words], work)
    assert done.returncode == code, done.stderr
    judged: dict[str, Any] = json.loads(done.stdout)
    return judged


def failed(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["id"], one["expected"]) for one in report["findings"] if one["status"] == "FAIL"]


def test_what_works_passes_check_and_test_and_takes_no_option_for_images_of_ours(
    extended: Callable[..., Path], foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    extended(**{"demo/__init__.py": "", "demo/inner.py": "raise SystemExit", "space/part/__init__.py": ""})
    assert judged(ground, work, "check", code=0)["passed"]
    report = judged(ground, work, "test", code=0)
    assert report["passed"]
    imported = [one["expected"] for one in report["findings"] if one["id"] == "image.imports"]
    assert imported == ["demo,space.part"]
    done = ground.run(["exec", "mine.sif", "--", "python3", "-c", "import demo; print(demo.__file__)"], work)
    assert done.stdout.endswith("/demo/__init__.py\n"), done.stderr
    # Where a site is named, the rules on its host count, too.
    other = {"amd64": "arm64", "arm64": "amd64"}[architecture()]
    (work / "other.yaml").write_text(f"name: other\narchitecture: {other}\n")
    report = judged(ground, work, "check", "--site", "other.yaml", code=4)
    assert [one["id"] for one in report["findings"] if one["status"] == "FAIL"] == ["ARCH.same"]
    for option in (["--mpi", "host"], ["--fabric", "host"]):
        done = ground.run(["test", "mine.sif", *option], work)
        assert done.returncode == 2
        assert f"{' '.join(option)}: only for images that envbuild built" in done.stderr
    for command in ("check", "test"):
        done = ground.run([command, foreign("built.sif")], work)
        assert done.returncode == 2
        assert "`envbuild extend` adds packages" in done.stderr


@pytest.mark.slow  # unit/extend/test_judge compares the findings
def test_only_what_the_addition_made_worse_fails(
    extended: Callable[..., Path], ground: Ground, work: Path
) -> None:
    broken = Elf(soname="", needed=("libgone.so.1",)).bytes()
    extended(code=4, **{"demo.abi3.so": broken})
    assert failed(judged(ground, work, "check", code=4)) == [("loader.libraries", "libgone.so.1")]
    report = judged(ground, work, "test", code=4)
    assert failed(report) == [
        ("loader.libraries", "libgone.so.1"),
        ("image.imports", "`import demo` (demo 1.0)"),
    ]


@pytest.mark.slow  # the next one has the exit code of a missing library
@pytest.mark.parametrize("image", ["built.sif", pytest.param("tiny.sif", marks=pytest.mark.slow)])
def test_a_library_that_the_old_image_lacks_does_not_fail_an_extension(
    image: str, foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    old = ground.place / image if image == "tiny.sif" else foreign(image)
    for name, code in (("first", 4), ("second", 0), ("third", 4)):
        broken = Elf(soname="", needed=(f"lib{name}.so.1",)).bytes()
        files = {f"{name}.abi3.so": broken} if code else {f"{name}/__init__.py": ""}
        wheel = make_wheel(work, f"{name}-1.0-py3-none-any.whl", **files)
        done = ground.run(["extend", old, "--wheel", wheel, "-o", f"{name}.sif", "--json"], work)
        assert done.returncode == code, done.stderr
        problems = json.loads(done.stdout)["preflight"]["problems"]
        assert [one["expected"] for one in problems] == ([f"lib{name}.so.1"] if code else [])
        old = work / f"{name}.sif"


@pytest.mark.parametrize("image", ["built.sif", pytest.param("tiny.sif", marks=pytest.mark.slow)])
def test_a_missing_library_is_one_exit_code(
    image: str, foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    """The image is written, and the library is named as by `check`."""
    broken = Elf(soname="", needed=("libgone.so.1",)).bytes()
    wheel = make_wheel(work, "demo-1.0-py3-none-any.whl", **{"demo.abi3.so": broken})
    old = ground.place / image if image == "tiny.sif" else foreign(image)
    said = extend(ground, work, old, "--wheel", wheel, "-o", "mine.sif", code=4)
    assert "mine.sif: written (" in said
    assert "FAIL loader.libraries" in said
    assert "libgone.so.1" in said
    assert "mine.sif: written, but some programs would not start" in said
    assert ("the spec" in said) == (image == "tiny.sif")
    found = json.loads(ground.run(["check", "mine.sif", "--json"], work).stdout)
    assert [one["expected"] for one in found["findings"] if one["status"] == "FAIL"] == ["libgone.so.1"]
    done = ground.run(["extend", old, "--wheel", wheel, "-o", "mine.sif", "--json"], work)
    assert done.returncode == 4
    problems = json.loads(done.stdout)["preflight"]["problems"]
    assert [one["expected"] for one in problems] == ["libgone.so.1"]


def imports(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    findings = [one for one in report["findings"] if one["id"] == "image.imports"]
    return [(one["status"], one["expected"], one["observed"]) for one in findings]


@pytest.mark.parametrize(
    ("modules", "module"),
    [
        ({"demo/__init__.py": "raise ImportError('broken')"}, "demo"),
        pytest.param({"demo/a.py": "raise ImportError('broken')"}, "demo.a", marks=pytest.mark.slow),
    ],
)
def test_what_was_requested_and_does_not_import_fails(
    modules: dict[str, str], module: str, extended: Callable[..., Path], ground: Ground, work: Path
) -> None:
    extended(**modules)
    report = judged(ground, work, "test", code=4)
    assert imports(report) == [("FAIL", f"`import {module}` (demo 1.0)", "ImportError: broken")]


@pytest.mark.slow  # the one before fails a module; unit/jobs/test_imports has namespaces and private ones
@pytest.mark.parametrize(
    ("module", "status", "code"),
    [("space.part", "FAIL", 4), ("_under", "SKIP", 0)],
)
def test_a_module_that_fails_beside_one_that_imports(
    module: str, status: str, code: int, extended: Callable[..., Path], ground: Ground, work: Path
) -> None:
    """A module in a namespace fails the package; a private one may be for another platform."""
    extended(**{f"{module.replace('.', '/')}.py": "raise ImportError('broken')"})
    report = judged(ground, work, "test", code=code)
    failed_one = (status, f"`import {module}` (demo 1.0)", "ImportError: broken")
    assert sorted(imports(report)) == sorted([("PASS", "demo.a", "all import"), failed_one])


@pytest.mark.slow  # workflows/test_imports has it for images of ours
def test_a_module_that_the_images_environment_puts_first_fails(
    foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    """PYTHONPATH hides what was added: by a module, and by another version of the package."""
    wheel = make_wheel(work, "demo-1.0-py3-none-any.whl", **{"demo/__init__.py": ""})
    (work / "first.py").write_text("")
    (work / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 0.9\n")
    words = ["--file", "first.py:/opt/first/demo.py"]
    extend(ground, work, foreign("paths.sif"), "--wheel", wheel, *words, "-o", "mine.sif")
    report = judged(ground, work, "test", code=4)
    assert imports(report) == [("FAIL", f"`import demo` (demo 1.0) from {SITE}", "/opt/first/demo.py")]
    extend(
        ground, work, "mine.sif", "--file", "METADATA:/opt/first/demo-0.9.dist-info/METADATA", "-o", "b.sif"
    )
    (work / "mine.sif").unlink()
    (work / "b.sif").rename(work / "mine.sif")
    report = judged(ground, work, "test", code=4)
    assert imports(report) == [("FAIL", f"demo 1.0 in {SITE}", "Python finds demo 0.9 in /opt/first")]


@pytest.mark.slow  # unit/extend has packages that PYTHONPATH finds
def test_what_the_images_pythonpath_has_is_there(
    foreign: Callable[[str], Path], ground: Ground, work: Path
) -> None:
    """As in layouts of Spack and EasyBuild: it need not be added, and another version is refused."""
    (work / "METADATA").write_text("Metadata-Version: 2.1\nName: delta\nVersion: 0.4\n")
    (work / "delta.py").write_text("")
    words = [f"--file=METADATA:{SPACK}/delta-0.4.dist-info/METADATA", f"--file=delta.py:{SPACK}/delta.py"]
    extend(ground, work, foreign("paths.sif"), *words, "-o", "centre.sif")
    output = extend(ground, work, "centre.sif", "--python", "gamma", "-o", "mine.sif")
    assert "gamma 1.0" in output
    assert "delta 0.5" not in output
    assert imports(judged(ground, work, "test", code=0)) == [("PASS", "gamma", "all import")]
    output = extend(ground, work, "centre.sif", "--python", "delta>=0.5", "-o", "new.sif", code=2)
    assert f"delta 0.4 is installed in `{SPACK}`, where `/usr/bin/python3` looks first" in output
