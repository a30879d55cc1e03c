"""A full file system is recognized in what programs write, and named."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from envbuild.system.space import SpaceDirectory, explained, no_space, says_full

SAID = (
    "E: Write error - write (28: No space left on device)",
    "E: You don't have enough free space in /var/cache/apt/archives/.\nNot enough free disk space",
    "error: failed to write to file `x`: No space left on device (os error 28)",
    "  cause: Disk quota exceeded (os error 122)",
    "OSError: [Errno 28] No space left on device",
    "fatal: write error: Disk quota exceeded",
    "Write failed because No space left on device",
    "tar: ./x: Cannot write: No space left on device",
    "E: mmap: (122: Disk quota exceeded)",
)


@pytest.mark.parametrize("said", SAID)
def test_what_programs_write_is_recognized(said: str) -> None:
    assert says_full(said)


@pytest.mark.parametrize(
    "said", ["E: Unable to locate package x", "2800 bytes left", "error 281", "a quota of 3"]
)
def test_other_output_is_not(said: str) -> None:
    assert not says_full(said)


def places(*paths: Path) -> list[SpaceDirectory]:
    for path in paths:
        path.mkdir()
    return [
        SpaceDirectory(name=f"the place {path.name},", path=path, hint=f"clear {path.name}") for path in paths
    ]


def test_the_directory_that_a_program_names_is_named(tmp_path: Path) -> None:
    both = places(tmp_path / "a", tmp_path / "b")
    error = no_space(both, output=f"tar: of {tmp_path}/a\ntar: {tmp_path}/b/x: No space left on device")
    assert (error.problem, error.hint) == (f"no space left in the place b, `{tmp_path}/b`", "clear b")
    assert error.exit_code == 5


def test_the_file_of_an_error_is_named_if_it_is_elsewhere(tmp_path: Path) -> None:
    error = explained(
        OSError(errno.ENOSPC, "No space left on device", "/proc/self/x"), places(tmp_path / "a")
    )
    assert error is not None
    assert error.problem == "no space left in `/proc/self`"


def test_of_a_copy_the_file_that_is_written_is_named(tmp_path: Path) -> None:
    source, target = str(tmp_path / "a/x"), "/proc/self/x"
    error = explained(
        OSError(errno.ENOSPC, "No space left on device", source, None, target), places(tmp_path / "a")
    )
    assert error is not None
    assert error.problem == "no space left in `/proc/self`"


def test_a_quota_is_named_as_one(tmp_path: Path) -> None:
    (place,) = places(tmp_path / "a")
    error = explained(OSError(errno.EDQUOT, "Disk quota exceeded"), [place])
    assert error is not None
    assert error.problem == f"no space left in the place a, `{tmp_path}/a`: the quota is used up"
    assert explained(OSError(errno.EACCES, "Permission denied"), [place]) is None


def test_of_several_the_one_with_the_least_space_is_named(tmp_path: Path) -> None:
    # Nothing can be written in /proc, which has no blocks.
    full = SpaceDirectory(name="", path=Path("/proc/self"), hint="x")
    error = no_space([*places(tmp_path / "a"), full], output="No space left on device")
    assert error.problem.endswith("`/proc/self`")
