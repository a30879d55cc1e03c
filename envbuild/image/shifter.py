"""An image in Shifter's form: a squashfs and its metadata, and what Shifter would hide or drop of it.

Source: NERSC/shifter at 84b7d349: `converters.writemeta` writes the text, `ImageData.c` and `utility.c` read
it, `fasthash.py` names an image that is imported, `shifter_core.c` (prepareSiteModifications,
bindImageIntoUDI, mountImageVFS, loopMount) builds the root; read, not run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from envbuild.errors import some
from envbuild.image.environment import DEFAULT_PATH, apply
from envbuild.image.model import Manifest, Variable
from envbuild.jobs.report import CheckResult
from envbuild.squashfs.reader import Entry

_SAMPLE_BYTES = 1024 * 1024
_STEP_BYTES = 512 * _SAMPLE_BYTES
# The default command: without one Shifter takes the user's shell on the host, which the image may lack.
# Its reader in C recognizes a list by its first two characters, ``['``, and unescapes nothing.
_COMMAND = "['/bin/bash', '--norc']"
# Shifter builds the root in memory: first the site's files, then those of the image's /, /etc, /opt and /var
# that are not there yet, /etc by copying. In these places the site's or the host's files hide the image's;
# the last is `udiMount` by default.
_HIDDEN = (
    *("/proc", "/sys", "/dev", "/tmp", "/etc/ssh", "/etc/udiImage", "/opt/udiImage"),  # noqa: S108
    *("/var/run", "/var/spool", "/var/tmp", "/var/empty", "/var/udiMount"),  # noqa: S108
)
# Not a limit of Shifter, but too much for a node to copy into memory at every start.
_ETC_BYTES = 16 << 20


def image_id(squashfs: Path) -> str:
    """Return the name that a gateway gives to an imported image, in 64 hex digits.

    It is the sha256 of the first MiB, and of the MiB at each further 512 MiB.
    """
    digest = hashlib.sha256()
    with squashfs.open("rb") as file:
        at = 0
        while sample := file.read(_SAMPLE_BYTES):
            digest.update(sample)
            at += _STEP_BYTES
            file.seek(at)
    return digest.hexdigest()


def environment(variables: Sequence[Variable]) -> dict[str, str]:
    """Return the variables that Shifter sets, sorted by name: no scripts, no empty values."""
    values = apply(variables, {"PATH": DEFAULT_PATH})
    return {name: value for name, value in sorted(values.items()) if value}


def unset_variables(variables: Sequence[Variable]) -> tuple[str, ...]:
    """Return the variables that the image empties, and that keep the host's value under Shifter."""
    values = apply(variables, {"PATH": DEFAULT_PATH})
    return tuple(sorted({variable.name for variable in variables if not values.get(variable.name)}))


def misread(variables: Sequence[Variable]) -> Iterator[tuple[str, str]]:
    """Yield the variables whose values Shifter would change, and why."""
    for name, value in environment(variables).items():
        if value != value.rstrip(" "):
            yield name, "blanks at the end are cut off"
        elif value.endswith("\\"):
            yield name, "a backslash at the end joins the next line to it"


def metadata_text(variables: Sequence[Variable]) -> str:
    """Return the text of ``<id>.meta``, its keys in the gateway's order; ValueError if it is misread."""
    for name, why in misread(variables):
        raise ValueError(f"Shifter would misread the variable {name}: {why}")
    lines = ["FORMAT: squashfs", f"CMD: {_COMMAND}"]
    lines += [f"ENV: {name}={value}" for name, value in environment(variables).items()]
    return "\n".join(lines) + "\n"


def lint(
    manifest: Manifest,
    entries: Mapping[str, Entry],
    *,
    abis: Collection[str] = (),
    rpath_files: Sequence[str] = (),
) -> list[CheckResult]:
    """Judge an image under Shifter: FAIL for a loss, SKIP for what people have to weigh.

    `entries` are the paths of its file system; `abis`, the families of MPI that its programs are linked to
    (``mpich``); `rpath_files`, the files that find their MPI by a DT_RPATH.
    """
    files = {path: entry for path, entry in entries.items() if entry.kind == "file"}
    etc = [entry.size for path, entry in files.items() if path.startswith("/etc/")]
    hidden = [path for path in files if any(path.startswith(f"{top}/") for top in _HIDDEN)]
    wrong = [f"{name}: {why}" for name, why in misread(manifest.environment)]
    kept = unset_variables(manifest.environment)
    return [
        _result(
            "etc-size",
            "SKIP" if sum(etc) > _ETC_BYTES else "PASS",
            f"/etc has at most {_ETC_BYTES >> 20} MiB: each node copies it into memory",
            f"{sum(etc) / 1e6:.1f} MB in {len(etc)} files",
            "put large files below /usr or /opt",
        ),
        _result(
            "hidden",
            "FAIL" if hidden else "PASS",
            "no files where Shifter shows the site's or the host's",
            f"{some(sorted(hidden))} are hidden by the site's" if hidden else "there are none",
            "put it elsewhere: below /srv, /usr/local or your own directory in /opt",
        ),
        _result(
            "environment",
            "FAIL" if wrong else "PASS",
            "variables that Shifter reads as they are",
            some(sorted(wrong)) or "as they are",
            "change the value in the spec",
        ),
        _result(
            "unset",
            "SKIP" if kept else "PASS",
            "variables of the host that the image takes away are gone",
            f"empty values are dropped: the host's {some(sorted(kept))} would stay"
            if kept
            else "none is taken away",
            "unset them before `shifter`, or name them in `siteEnvUnset` of udiRoot.conf",
        ),
        _result(
            "mpi",
            *_judge_mpi(manifest, abis, rpath_files),
            "build with mpich or intel-mpi, without DT_RPATH: the site's MPI module has MPICH's ABI",
        ),
    ]


def _judge_mpi(manifest: Manifest, abis: Collection[str], rpath_files: Sequence[str]) -> tuple[str, str, str]:
    expected = "an MPI that the site's can replace"
    if not manifest.mpi:
        return "PASS", expected, "the image has no MPI"
    if rpath_files:
        return "FAIL", expected, f"a DT_RPATH leads to the image's own: {some(sorted(rpath_files))}"
    if others := sorted(set(abis) - {"mpich"}):
        return "SKIP", expected, f"programs linked to {', '.join(others)} stay on the image's own MPI"
    return "PASS", expected, "MPICH's ABI: the site's libmpi.so.12 can replace it"


def _result(rule: str, status: str, expected: str, observed: str, hint: str) -> CheckResult:
    return CheckResult(status, f"shifter.{rule}", expected, observed, "" if status == "PASS" else hint)
