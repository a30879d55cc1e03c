"""Whatever libraries there are, and wherever they look: the simulation finds what the real loader finds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.elf.loader import Search, closure
from envbuild.elf.read import ElfObject, read_elf
from tests.support.elves import Elf

LOADER = "/lib64/ld-linux-x86-64.so.2"
DIRECTORIES = ("one", "two", "three")
LIBRARIES = ("liba.so", "libb.so", "libc_.so", "libd.so")

places = st.lists(st.sampled_from([*DIRECTORIES, "nowhere"]), min_size=1, max_size=3, unique=True)


@st.composite
def objects(draw: st.DrawFn, least: int = 0) -> Elf:
    def path() -> str:
        start = draw(st.sampled_from(["$ORIGIN/../", "${ORIGIN}/../", "@ROOT@/"]))
        return ":".join(start + place for place in draw(places))

    return Elf(
        # A library's own name, another one's, or none.
        soname=draw(st.sampled_from(["", "own", "own", "own", LIBRARIES[0], "libother.so"])),
        needed=tuple(draw(st.lists(st.sampled_from(LIBRARIES), min_size=least, max_size=3, unique=True))),
        rpath=path() if draw(st.booleans()) else "",
        runpath=path() if draw(st.booleans()) else "",
        flags_1=draw(st.sampled_from([0, 0, 0, 0x800])),
    )


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Elf | str]:
    files: dict[str, Elf | str] = {}
    for directory in DIRECTORIES:
        for name in LIBRARIES:
            kind = draw(st.sampled_from(["elf", "elf", "elf", "elf", "link", "none", "arm"]))
            if kind == "elf":
                files[f"{directory}/{name}"] = draw(objects())
            elif kind == "arm":
                files[f"{directory}/{name}"] = Elf(machine="arm64")
            elif kind == "link":
                # Never in a circle: there the real loader gives up, whatever lies in the next directory.
                later = DIRECTORIES[DIRECTORIES.index(directory) + 1 :] or ("nowhere",)
                other = draw(st.sampled_from(later)), draw(st.sampled_from(LIBRARIES))
                files[f"{directory}/{name}"] = f"../{'/'.join(other)}"
    return files


class OnDisk:
    """The files below a directory of this machine."""

    def __init__(self) -> None:
        self._read: dict[str, ElfObject | None] = {}

    def lookup(self, path: str) -> ElfObject | None:
        real = os.path.realpath(path)
        if real not in self._read:
            found = None
            if Path(real).is_file():
                with Path(real).open("rb") as file:
                    found = read_elf(file)
            self._read[real] = found
        return self._read[real]


def write(root: Path, files: dict[str, Elf | str], program: Elf) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name, content in {**files, "bin/app": program}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.symlink_to(content)
            continue
        own = path.name if content.soname == "own" else content.soname
        at = {"rpath": content.rpath, "runpath": content.runpath}
        fields = {name: text.replace("@ROOT@", str(root)) for name, text in at.items()}
        path.write_bytes(Elf(**{**content.__dict__, **fields, "soname": own}).bytes())


@given(files=trees(), program=objects(2), path=places)
@settings(
    max_examples=2 * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_real_loader_agrees(
    tmp_path: Path, files: dict[str, Elf | str], program: Elf, path: list[str]
) -> None:
    root = tmp_path / "tree"
    write(root, files, program)
    library_path = tuple(f"{root}/{place}" for place in path)
    said = subprocess.run(
        [LOADER, root / "bin/app"],
        env={"LD_TRACE_LOADED_OBJECTS": "1", "LD_LIBRARY_PATH": ":".join(library_path)},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    real: list[tuple[str, str]] = []
    for line in said.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow:
            real.append((name, rest if rest == "not found" else rest.rpartition(" (")[0]))
    found = closure(f"{root}/bin/app", OnDisk(), Search(library_path=library_path))
    if found.missing:
        # Where one is missing, the real loader puts an empty one in its place for all who ask later.
        assert next(name for name, place in real if place == "not found") == found.missing[0].name
        return
    ours = []
    for one in found.objects[1:]:
        assert one.parent is not None
        ours.append((next(name for name, got in one.parent.needs.items() if got is one), one.path))
    assert ours == real
