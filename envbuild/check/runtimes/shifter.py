"""What Shifter hides, replaces, refuses or silently drops of an image. Pure.

Shifter builds a root of its own in memory: first the site's, then the entries of ``/``, ``/var``,
``/opt`` and ``/etc`` of the image that are not there yet, the first three bound, the last copied.

Source: NERSC/shifter at 84b7d349, `src/shifter_core.c` (prepareSiteModifications, bindImageIntoUDI,
mountImageVFS, loopMount, _shifter_putenv) and `userInputPathFilter` of `src/utility.c`; read, not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from envbuild.image.model import Manifest
from envbuild.image.shifter import misread, unset_variables
from envbuild.jobs.report import Finding
from envbuild.squashfs.reader import Entry

# Directories whose entries are taken over one by one.
_TAKEN = ("/", "/etc", "/opt", "/var")
_NAME = re.compile(r"[A-Za-z0-9_:.+-]+")
# FILE_SIZE_LIMIT of shifter_core.h.
_LARGE_BYTES = 5_242_880
# Not a limit of Shifter's: what each node should not have to copy into memory at every start.
_ETC_BYTES = 16 << 20
# Whatever the image has there, the site's or the host's is seen; the last is `udiMount` by default.
_HIDDEN = (
    *("/proc", "/sys", "/dev", "/tmp", "/etc/ssh", "/etc/udiImage", "/opt/udiImage"),  # noqa: S108
    *("/var/run", "/var/spool", "/var/tmp", "/var/empty", "/var/udiMount"),  # noqa: S108
)
_REPLACED = tuple(
    f"/etc/{name}"
    for name in (
        *("passwd", "group", "group.orig", "shadow", "nsswitch.conf", "hosts", "host.conf"),
        *("resolv.conf", "mtab"),
    )
)
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an image is, as far as Shifter makes a difference.

    Attributes
    ----------
    entries : mapping of str to Entry
        Path → what is there.
    abis : collection of str
        Families of MPI that its programs were linked to (``mpich``).
    bound_hard : sequence of str
        Files that find their MPI by a DT_RPATH.
    """

    manifest: Manifest
    entries: Mapping[str, Entry]
    abis: Collection[str] = ()
    bound_hard: Sequence[str] = ()

    def below(self, directory: str) -> Iterable[Entry]:
        """Yield the entries directly in a directory."""
        prefix = directory.rstrip("/") + "/"
        for path, entry in self.entries.items():
            if path.startswith(prefix) and path != "/" and "/" not in path[len(prefix) :]:
                yield entry


Outcome = tuple[str, str]
"""A status, and what was observed."""


def lint(seen: Seen) -> list[Finding]:
    """Return a line of a report for each rule: FAIL for what is lost, SKIP for what only people can tell."""
    found = []
    for name, (expected, hint, rule) in RULES.items():
        status, observed = rule(seen)
        found.append(Finding(status, f"SHIFTER.{name}", expected, observed, "" if status == "PASS" else hint))
    return found


def _names(seen: Seen) -> Outcome:
    odd = [
        entry.path
        for directory in _TAKEN
        for entry in seen.below(directory)
        if not _NAME.fullmatch(entry.path.rpartition("/")[2])
    ]
    return _lost(odd, "are not taken over")


def _kinds(seen: Seen) -> Outcome:
    odd = [
        entry.path
        for directory in _TAKEN
        for entry in seen.below(directory)
        if entry.kind not in ("directory", "file", "link")
    ]
    return _lost(odd, "are not taken over")


def _directories(seen: Seen) -> Outcome:
    odd = [path for path in _TAKEN[1:] if path in seen.entries and seen.entries[path].kind != "directory"]
    return _lost(odd, "would be looked up on the host", "they are")


def _large_files(seen: Seen) -> Outcome:
    large = [
        entry.path for entry in seen.below("/etc") if entry.kind == "file" and entry.size >= _LARGE_BYTES
    ]
    return _lost(large, "are dropped without a word")


def _etc_size(seen: Seen) -> Outcome:
    files = [
        entry for path, entry in seen.entries.items() if path.startswith("/etc/") and entry.kind == "file"
    ]
    size = sum(entry.size for entry in files)
    observed = f"{size / 1e6:.1f} MB in {len(files)} files"
    return ("SKIP" if size > _ETC_BYTES else "PASS"), observed


def _hidden(seen: Seen) -> Outcome:
    gone = [
        path
        for path, entry in seen.entries.items()
        if entry.kind == "file" and any(path == top or path.startswith(f"{top}/") for top in _HIDDEN)
    ]
    return _lost(gone, "are hidden by the site's", "there are none")


def _replaced(seen: Seen) -> Outcome:
    there = [path for path in _REPLACED if path in seen.entries]
    return "PASS", f"instead of {_shown(there)}" if there else "the image has none of its own"


def _environment(seen: Seen) -> Outcome:
    wrong = [f"{name}: {why}" for name, why in misread(seen.manifest.environment)]
    return ("FAIL" if wrong else "PASS"), _shown(wrong) or "as they are"


def _unset(seen: Seen) -> Outcome:
    kept = unset_variables(seen.manifest.environment)
    return ("SKIP" if kept else "PASS"), (
        f"empty values are dropped: the host's {_shown(kept)} would stay" if kept else "none is taken away"
    )


def _set_id(seen: Seen) -> Outcome:
    bits = [path for path, entry in seen.entries.items() if entry.kind == "file" and entry.mode & 0o6000]
    return ("SKIP" if bits else "PASS"), (
        f"the image is mounted nosuid: {_shown(bits)}" if bits else "there are none"
    )


def _attributes(seen: Seen) -> Outcome:
    held = [
        f"{name} of {path}"
        for path, entry in seen.entries.items()
        for name, _ in entry.attributes
        if ".overlay." not in name
    ]
    return ("SKIP" if held else "PASS"), f"left out: {_shown(held)}" if held else "there are none"


def _mpi(seen: Seen) -> Outcome:
    if not seen.manifest.mpi:
        return "PASS", "the image has no MPI"
    if seen.bound_hard:
        return "FAIL", f"a DT_RPATH leads to the image's own: {_shown(seen.bound_hard)}"
    others = sorted(set(seen.abis) - {"mpich"})
    if others:
        return "SKIP", f"programs were linked to {', '.join(others)}: they stay on the image's own MPI"
    return "PASS", "MPICH's ABI: the site's libmpi.so.12 can take its place"


Rule = Callable[[Seen], Outcome]
_RENAME = "name it with letters, digits, `_`, `:`, `.`, `+` and `-` alone"
# Rule → what should be, what to do about it, how it is told.
RULES: dict[str, tuple[str, str, Rule]] = {
    "names": ("entries of /, /etc, /opt and /var with names that Shifter lets through", _RENAME, _names),
    "kinds": (
        "entries of /, /etc, /opt and /var are files, directories and links",
        "put it into a directory below",
        _kinds,
    ),
    "directories": ("/etc, /opt and /var are directories", "replace the link by a directory", _directories),
    "large-files": (
        f"files directly in /etc have less than {_LARGE_BYTES} bytes",
        "put it into a directory of its own, or below /usr or /opt",
        _large_files,
    ),
    "etc-size": (
        f"/etc has at most {_ETC_BYTES >> 20} MiB: each node copies it into memory",
        "put large files below /usr or /opt",
        _etc_size,
    ),
    "hidden": (
        "no files where Shifter shows the site's or the host's",
        "put it elsewhere: below /srv, /usr/local or a directory of your own in /opt",
        _hidden,
    ),
    "replaced": ("the site's users, groups and name services", "", _replaced),
    "environment": ("variables that Shifter reads as they are", "change the value in the spec", _environment),
    "unset": (
        "variables of the host that the image takes away are gone",
        "unset them before `shifter`, or name them in `siteEnvUnset` of udiRoot.conf",
        _unset,
    ),
    "set-id": (
        "no programs that need their set-id bits",
        "do without them: no rootless runtime has any",
        _set_id,
    ),
    "attributes": ("no extended attributes", "do without file capabilities", _attributes),
    "mpi": (
        "an MPI whose place the site's can take",
        "build with mpich or intel-mpi, without DT_RPATH: the site's MPI module has MPICH's ABI",
        _mpi,
    ),
}


def _lost(paths: Sequence[str], how: str, good: str = "all are") -> Outcome:
    return ("FAIL", f"{_shown(paths)} {how}") if paths else ("PASS", good)


def _shown(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(sorted(texts)[:_SHOWN]) + more
