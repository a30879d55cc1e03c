"""Facts of an image of another tool, which has neither lock nor manifest: those that its files show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from envbuild.image.files import ImageFiles
from envbuild.preflight.report import examine_files
from envbuild.preflight.scan import FileSystemScan
from envbuild.rules.facts import Fact, Value, facts_from, newest, texts_of
from envbuild.rules.from_lock import facts_of_variables

_SCRIPTS = "/.singularity.d/env"
_MAX_SCRIPT_BYTES = 64 << 10
# The form in which Apptainer writes the variables of a registry's image.
_EXPORT = re.compile(r'^export ([A-Za-z_][A-Za-z0-9_]*)="\$\{\1:-"([^"$`\\]*)"\}"$', re.MULTILINE)
_LOADER = "LD_LIBRARY_PATH"
# Facts of the libraries that a process gets: the search path decides.
_OF_LOADER = (
    *("mpi.abis", "mpi.needed_abis", "mpi.needed_sonames", "cudnn.loaded", "nccl.loaded"),
    *("libstdcxx.image", "cuda.driver_library"),
)
# Where a distribution has its C library; a sysroot of compilers lies elsewhere.
_OF_SYSTEM = re.compile(r"(?:/usr)?/lib(?:64)?(?:/(?:x86_64|aarch64)-linux-gnu)?")
_PYTHON = re.compile(r"/lib(?:64)?/python(3\.[0-9]+)/")


def facts_of_stranger(scan: FileSystemScan, files: ImageFiles) -> dict[str, Fact]:
    """Return the facts that the files of an image show, without starting anything in it.

    What it does not show is unknown, such as the version of an MPI, or what its programs load if its start
    sets LD_LIBRARY_PATH by more than a plain value.
    """
    architecture = _architecture(scan)
    if architecture is None:
        return {}
    variables, is_plain = _variables(files)
    search = tuple(filter(None, variables.get(_LOADER, "").split(":")))
    examined = examine_files(scan, (set(), 0), architecture=architecture, library_path=search).facts
    facts = {path: fact for path, fact in examined.items() if is_plain or path not in _OF_LOADER}
    abis = texts_of(facts, "mpi.abis") if "mpi.abis" in facts else ()
    glibcs = {
        newest(file.elf.versions_defined, "GLIBC")
        for path, file in scan.objects.items()
        if file.elf.soname == "libc.so.6" and _OF_SYSTEM.fullmatch(path.rpartition("/")[0])
    }
    pythons = {match[1] for path in scan.distributions if (match := _PYTHON.search(path))}
    values: dict[str, Value | None] = {
        "architecture.image": architecture,
        "glibc.image": glibcs.pop() if len(glibcs) == 1 else None,
        "python.version": pythons.pop() if len(pythons) == 1 else None,
        # The other ABI is that of several MPIs.
        "mpi.family": "openmpi" if abis and all(abi.startswith("openmpi") for abi in abis) else None,
    }
    # A variable that is not seen may be set otherwise.
    seen = {path: fact for path, fact in facts_of_variables(variables).items() if fact.value not in ("", ())}
    return {**facts_from(values, "image"), **seen, **facts}


def _architecture(scan: FileSystemScan) -> str | None:
    """Return the architecture of most of the ELF files; None without any of a known one."""
    counted = Counter(file.elf.machine for file in scan.objects.values())
    return next((machine for machine, _ in counted.most_common() if machine in ("amd64", "arm64")), None)


def _variables(files: ImageFiles) -> tuple[Mapping[str, str], bool]:
    """Return the variables that the image's start sets to plain values, and whether the loader's is known."""
    variables: dict[str, str] = {}
    is_plain = True
    for path in files.below(_SCRIPTS):
        text = files.read(path, _MAX_SCRIPT_BYTES) or ""
        found = dict(_EXPORT.findall(text))
        variables |= found
        is_plain &= _LOADER in found or _LOADER not in text
    return variables, is_plain
