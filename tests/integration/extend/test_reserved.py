"""Places and variables that no extension takes: the same for `--file`, `--env` and `--like`, as in a spec."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.image.extension import NOTE_PATH
from envbuild.system import squashfs
from tests.support.torture.ground import Ground

IN_ALL = (
    "/.envbuild/extend.json",
    "/.envbuild",
    "/.singularity.d/env/92-envbuild.sh",
    "/.singularity.d/runscript",
    "/etc/ld.so.preload",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d/mine.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.cache",
    "/etc/environment",
    "/proc/x",
    "/etc",
)
IN_OURS = (
    "/tmp/x",
    "/home/x",
    "/etc/hosts",
    "/var",
    "/opt/env/bin/mine",
    "/opt/mpi/lib/libmpi.so.12",
    "/opt/fabric/x",
    "/opt/accel",
    "/opt",
    "/bin/x",
)
NOT_NORMAL = ("/opt/../.envbuild/x", "//.envbuild/x", "/.envbuild/", "/opt//x", "/./.envbuild/x", "opt/x")
SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
# Variables that decide which code runs, of each kind.
DECISIVE = (
    *("PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR", "LD_PRELOAD", "LD_ORIGIN_PATH"),
    *("GCONV_PATH", "GLIBC_TUNABLES", "SHELLOPTS", "PS4", "HYDRA_LAUNCHER_EXEC", "OPAL_PREFIX"),
    *("ENVBUILD_INSIDE", "BASH_FUNC_ls", "SLURM_STEP_NUM_TASKS"),
)


def run(*words: str | Path, code: int = 0) -> str:
    """Run `envbuild extend`; return what it prints."""
    line = [sys.executable, "-m", "envbuild.cli.main", "extend", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of another tool, whose links lead to reserved places, and from them elsewhere."""
    root = tmp_path / "root"
    for directory in ("etc", ".singularity.d/env", "opt", "srv/preloads", "bin"):
        (root / directory).mkdir(parents=True)
    (root / "opt/started").symlink_to("/.singularity.d")
    (root / "opt/up").symlink_to("..")
    (root / "opt/conf").symlink_to("../etc/ld.so.conf.d")
    (root / "etc/ld.so.preload").symlink_to("../srv/preloads/list")
    (root / "ch").symlink_to("srv/tables")
    path = tmp_path / "foreign.sqfs"
    squashfs.make(root, path)
    (tmp_path / "note.txt").write_text("mine\n")
    return path


def files_at(directory: Path, *targets: str) -> list[str]:
    """Return the options that add a file at each of the targets."""
    return [word for target in targets for word in ("--file", f"{directory}/note.txt:{target}")]


def test_reserved_targets_are_refused_in_an_image_of_any_tool(image: Path, tmp_path: Path) -> None:
    by_links = (
        "/opt/started/env/95-mine.sh",
        "/opt/up/.singularity.d/runscript",
        "/opt/conf/mine.conf",
        "/srv/preloads/list",
        "/srv/tables/environment",
    )
    request: tuple[str | Path, ...] = (
        *files_at(tmp_path, *IN_ALL, *by_links),
        "-o",
        tmp_path / "new.sqfs",
        "--store",
        tmp_path / "s",
    )
    said = run(image, *request, code=2)
    refused = [line for line in said.splitlines() if line.endswith("is reserved")]
    assert [line.partition(": /")[0] for line in refused] == [
        f"error: a file may not go to `{target}`" for target in (*IN_ALL, *by_links)
    ]
    assert not (tmp_path / "new.sqfs").exists()


def test_a_target_has_one_spelling(image: Path, tmp_path: Path) -> None:
    said = run(image, *files_at(tmp_path, *NOT_NORMAL), "--store", tmp_path / "s", code=2)
    for target in NOT_NORMAL:
        assert f"`{target}` is not an absolute path" in said


def test_other_places_are_free(image: Path, tmp_path: Path) -> None:
    """In another tool's image also those that only images of envbuild reserve; names are told by case."""
    targets = (
        "/opt/env/bin/mine",
        "/bin/x",
        "/srv/preloads/other",
        "/home/app/x",
        "/etc/LD.SO.PRELOAD",
        "/.envbuilder",
    )
    files = files_at(tmp_path, *targets)
    run(image, *files, "--env", "MANPATH=/a", "-o", tmp_path / "new.sqfs", "--store", tmp_path / "s")
    listed = subprocess.run(
        ["unsquashfs", "-ls", tmp_path / "new.sqfs"], capture_output=True, text=True, check=True
    )
    assert {f"squashfs-root{target}" for target in targets} <= set(listed.stdout.split())


def test_search_paths_are_not_set_as_a_whole(image: Path, tmp_path: Path) -> None:
    names = (*SEARCH_PATHS, *DECISIVE)
    options = [word for name in names for word in ("--env", f"{name}=/mine")]
    said = run(image, *options, "-o", tmp_path / "new.sqfs", "--store", tmp_path / "s", code=2)
    assert said.count("error: --env ") == len(names)
    assert not (tmp_path / "new.sqfs").exists()


def extended(tmp_path: Path, files: dict[str, bytes], environment: dict[str, str]) -> Path:
    """Return an image that says what it was given, as another's may without envbuild."""
    requests = {
        "python": [],
        "wheels": [],
        "upgrade": [],
        "executable": "",
        "environment": environment,
        "files": [
            {"target": target, "sha256": hashlib.sha256(content).hexdigest(), "executable": False}
            for target, content in files.items()
        ],
    }
    extension = {"image": "a.sif", "digest": f"sha256:{'0' * 64}", "envbuild": "0.1.0", "requests": requests}
    root = tmp_path / "theirs"
    note = json.dumps({"format": 1, "extensions": [extension]}).encode()
    for path, content in {**files, NOTE_PATH: note}.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    squashfs.make(root, tmp_path / "theirs.sqfs")
    return tmp_path / "theirs.sqfs"


@pytest.mark.parametrize(
    ("files", "environment", "named"),
    [
        (["/etc/ld.so.preload", "/etc/ld.so.conf.d/x.conf", "/opt/started/runscript"], [], "is reserved"),
        ([], SEARCH_PATHS, "may not be set as a whole"),
        ([], ["PYTHONHOME"], "`PYTHONHOME` decides which code Python runs"),
        ([], ["GCONV_PATH"], "`GCONV_PATH` decides which libraries programs load"),
    ],
)
def test_what_is_refused_is_not_taken_over_from_another_image(
    files: list[str], environment: list[str], named: str, image: Path, tmp_path: Path
) -> None:
    like = extended(tmp_path, dict.fromkeys(files, b"/evil\n"), dict.fromkeys(environment, "/evil"))
    said = run(image, "--like", like, "-o", tmp_path / "new.sqfs", "--store", tmp_path / "s", code=2)
    assert said.count(named) == len(files) + len(environment)
    assert not (tmp_path / "new.sqfs").exists()


def test_the_output_lists_files_and_variables_that_are_taken_over(image: Path, tmp_path: Path) -> None:
    """But not those that the same run gives anew."""
    like = extended(tmp_path, {"/opt/x": b"theirs\n", "/opt/y": b"theirs\n"}, {"A": "theirs", "B": "theirs"})
    own = ("--file", f"{tmp_path}/note.txt:/opt/y", "--env", "B=mine")
    request = (image, "--like", like, *own, "--store", tmp_path / "s", "-o", tmp_path / "new.sqfs")
    for words in (("--dry-run",), ()):
        said = run(*request, *words)
        lines = [line for line in said.splitlines() if line.startswith("taken over: ")]
        assert [line.partition(" (")[0] for line in lines] == [
            "taken over: file /opt/x",
            "taken over: environment A = theirs",
        ]
    shown = run(*request, "--dry-run", "--json", "-q")
    taken = json.loads(shown)["taken_over"]
    assert [file["target"] for file in taken["files"]] == ["/opt/x"]
    assert taken["environment"] == {"A": "theirs"}


def test_what_is_left_out_is_not_taken_over(image: Path, tmp_path: Path) -> None:
    like = extended(tmp_path, {"/opt/x": b"theirs\n", "/opt/y": b"theirs\n"}, {"A": "theirs", "B": "theirs"})
    request = (image, "--like", like, "--store", tmp_path / "s", "-o", tmp_path / "new.sqfs", "--dry-run")
    said = run(*request, "--without", "/opt/x", "--without", "B")
    assert "taken over: file /opt/y (" in said
    assert "taken over: environment A = theirs" in said
    assert said.count("taken over: ") == 2
    said = run(*request, "--without", "/opt/z", code=2)
    assert "`/opt/z` was not requested for `theirs.sqfs`" in said
    assert "hint: requested: /opt/x, /opt/y, A, B" in said or "hint: did you mean `/opt/" in said


def test_nothing_is_made_without_all_that_was_added(image: Path, tmp_path: Path) -> None:
    like = extended(tmp_path, {"/opt/x": b"theirs\n"}, {"A": "theirs"})
    request = (image, "--like", like, "--store", tmp_path / "s", "-o", tmp_path / "new.sqfs")
    said = run(*request, "--without", "/opt/x", "--without", "A", code=2)
    assert "error: `--without` leaves out all that was added to `theirs.sqfs`\n" in said
    assert f"hint: the image without it is `{image}` as it is\n" in said
    assert not (tmp_path / "new.sqfs").exists()


def test_an_image_of_ours_reserves_what_its_spec_reserves(ground: Ground) -> None:
    desk = ground.desk("reserved")
    (desk / "note.txt").write_text("a note\n")
    ground.own(desk)
    targets = (*IN_ALL, *IN_OURS)
    words: list[str | Path] = [
        "extend",
        ground.place / "tiny.sif",
        *files_at(desk, *targets),
        "-o",
        "new.sif",
    ]
    said = ground.run(words, desk, store=desk / "store")
    assert said.returncode == 2, said.stderr
    for target in targets:
        assert f"a file may not go to `{target}`: " in said.stderr
    assert not (desk / "new.sif").exists()


@pytest.mark.parametrize("target", ["/usr/bin/python3", "/etc/debian_version"])
def test_a_dry_run_refuses_a_file_that_the_image_has(ground: Ground, target: str) -> None:
    """As the run does; a file with the content that is there is none."""
    desk = ground.desk(f"dry{target.replace('/', '-')}")
    (desk / "note.txt").write_text("a note\n")
    ground.own(desk)
    words: list[str | Path] = ["extend", ground.place / "tiny.sif", *files_at(desk, target), "-o", "new.sif"]
    for options in (["--dry-run"], []):
        said = ground.run([*words, *options], desk, store=desk / "store")
        assert said.returncode == 3, said.stderr
        assert f"layers conflict in 1 file\n  {target}: " in said.stderr
    free: list[str | Path] = [
        "extend",
        ground.place / "tiny.sif",
        *files_at(desk, "/srv/note"),
        "-o",
        "new.sif",
        "--dry-run",
    ]
    assert ground.run(free, desk, store=desk / "store").returncode == 0
    assert not (desk / "new.sif").exists()
