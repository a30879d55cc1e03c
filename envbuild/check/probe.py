"""Facts of an image, found inside it: what imports, and which shared objects lack a library.

Usage: ``python3 -I probe.py ROOT [MODULE…]``; prints one JSON object.
Standard library only, Python 3.9 or newer; travels in every image, and is also
sent in through standard input by `envbuild test`. What is imported is imported
by the `python` that is first on PATH.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

FORMAT = 1

# What an image leaves to its host: drivers, fabric and schedulers' libraries; and other MPIs,
# for which some wheels bring one extension each (mpi4py) and pick the one that fits at import.
HOST_LIBRARIES = re.compile(
    r"lib(cuda|nvidia-ml|nvcuvid|nvidia-encode|nvidia-ptxjitcompiler|gdrapi|cufile|cufile_rdma|ze_loader"
    r"|amdhip64|hsa-runtime64|rocm_smi64|ibverbs|mlx5|mlx4|efa|rdmacm|ibumad|ibmad|infinipath|psm2?|psm_infinipath|opx"
    r"|cxi|xpmem|knem|lustreapi|nl-3|nl-route-3|ucp|ucs|uct|ucm|fabric|lsf|bat|torque|pbs|pmi2?|pmix|fuse3?"
    r"|mpi|mpi_abi|oshmem|mpifort|mpi_cxx|mpi_mpifh|mpi_usempi|impi)\.so(\.|$)"
)
# Its driver's are never in an image, whoever leans on them.
DRIVER_LIBRARIES = re.compile(r"lib(cuda|nvidia-ml|amdhip64|hsa-runtime64)\.so(\.|$)")
# Of these an image holds one copy, or a process would sooner or later load two.
SINGLE_LIBRARIES = re.compile(r"lib(cudart|nccl|cudnn)\.so(\.|$)")
# Runs on Python 2.7, too. What a module prints is none of our JSON.
_IMPORT = """\
import sys
del sys.path[0]  # modules come from the image alone, not from the working directory
import importlib, json, os
out = os.dup(1)
os.dup2(2, 1)

def built(name, module):
    if name == "torch":
        flags = getattr(module._C, "_cuda_getArchFlags", lambda: None)()
        return {
            "cuda": module.version.cuda,
            "hip": getattr(module.version, "hip", None),
            "architectures": (flags or "").split(),
        }
    if name == "tensorflow":
        told = module.sysconfig.get_build_info()
        return {
            "cuda": str(told.get("cuda_version") or "built") if told.get("is_cuda_build") else None,
            "hip": "built" if told.get("is_rocm_build") else None,
            "architectures": list(told.get("cuda_compute_capabilities") or []),
        }
    if name == "mxnet":
        return {"cuda": "built" if module.runtime.Features().is_enabled("CUDA") else None}

try:
    module = importlib.import_module(sys.argv[1])
except BaseException as error:  # SystemExit at import is a failure too
    reason = "%s: %s" % (type(error).__name__, error)
    os.write(out, (reason if isinstance(reason, bytes) else reason.encode("utf-8", "replace"))[:2000])
    os._exit(1)
try:
    build = built(sys.argv[1], module)
except Exception as error:
    build = {"error": "%s: %s" % (type(error).__name__, error)}
if build is not None:
    os.write(out, json.dumps(build).encode("utf-8"))
os._exit(0)
"""
_CHECK_BUILD_S = 120
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 15, 29
_MAX_TABLE_BYTES = 64 << 20
_MAX_NAME_BYTES = 64 << 10


class Object:
    """What the loader wants to know of one ELF file.

    Attributes
    ----------
    path : str
        Where it is.
    executable : bool
        Whether it names a loader, so that it can be started.
    needed, rpath, runpath : list of str
        The libraries it asks for and where it asks to look first.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self.executable = False
        self.needed: list[str] = []
        self.rpath: list[str] = []
        self.runpath: list[str] = []


def read_object(path: str) -> Object | None:
    """Read an ELF file of this machine's kind; None for anything else.

    Raises
    ------
    ValueError
        It is cut short or malformed.
    """
    with Path(path).open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return None
        kind, machine = struct.unpack_from("<HH", header, 16)
        if kind not in (2, 3) or machine != {"x86_64": 62, "aarch64": 183}.get(platform.machine()):
            return None
        (offset,) = struct.unpack_from("<Q", header, 32)
        entry_bytes, count = struct.unpack_from("<HH", header, 54)
        if entry_bytes != 56:
            raise ValueError("odd program header")

        def piece(at: int, length: int) -> bytes:
            if length > _MAX_TABLE_BYTES:
                raise ValueError("odd table size")
            file.seek(at)
            data = file.read(length)
            if len(data) != length:
                raise ValueError("cut short")
            return data

        table = piece(offset, entry_bytes * count)
        # type, flags, offset, address, physical address, bytes in file, bytes in memory, alignment
        segments = list(struct.iter_unpack("<IIQQQQQQ", table))
        found = Object(path)
        found.executable = any(segment[0] == _PT_INTERP for segment in segments)
        dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
        if dynamic is None:
            return found
        entries = list(struct.iter_unpack("<qQ", piece(dynamic[2], dynamic[5] // 16 * 16)))
        single = dict(reversed(entries))
        at = _file_offset(segments, single.get(_DT_STRTAB, 0))
        strings_bytes = single.get(_DT_STRSZ, 0)

        def text(start: int) -> str:
            # One name at a time: the table of a large library with all its symbols (TensorFlow's) may
            # be longer than anything that is read here.
            if start >= strings_bytes:
                raise ValueError("a name lies outside its table")
            name, end, _ = piece(at + start, min(_MAX_NAME_BYTES, strings_bytes - start)).partition(b"\0")
            if not end:
                raise ValueError("a name has no end")
            return name.decode(errors="replace")

        for tag, value in entries:
            if tag == _DT_NEEDED:
                found.needed.append(text(value))
            elif tag == _DT_RPATH:
                found.rpath = text(value).split(":")
            elif tag == _DT_RUNPATH:
                found.runpath = text(value).split(":")
    return found


def _file_offset(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, start, _, size, _, _ in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise ValueError("its string table is in no segment")


def directories(found: Object, library_path: list[str], system: list[str]) -> list[str]:
    """Return where the loader looks for what an object needs, in its order (ld.so(8))."""
    origin = str(Path(found.path).parent)
    first = [] if found.runpath else found.rpath
    words = [*first, *library_path, *found.runpath, *system]
    return [re.sub(r"\$(ORIGIN|\{ORIGIN\})", lambda _: origin, word) for word in words if word]


def system_directories() -> list[str]:
    """Return the directories that the loader knows without being told."""
    triplet = f"{platform.machine()}-linux-gnu"
    result = []
    for conf in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        lines = conf.read_text(errors="replace").splitlines()
        result += [line.strip() for line in lines if line.startswith("/")]
    return [*result, f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]


def scan(root: str, library_path: list[str]) -> dict[str, object]:
    """Look at every ELF file below a directory and say what it needs and cannot find.

    Excused, and named apart: a library that an image leaves to its host, where
    only plugins and extensions ask for it that nothing sound leans on; and a
    neighbour in the same site-packages that its package loads first.

    Returns
    -------
    dict
        ``objects`` (count), ``missing`` (``OBJECT needs LIBRARY``),
        ``excused`` (library names) and ``single`` (paths of the libraries that
        should be there once), all sorted.
    """
    objects, missing = _objects(root)
    system = system_directories()
    sites: dict[str, set[str]] = {}
    for found in objects:
        sites.setdefault(found.name, set()).add(_site(found.path))
    lacks: dict[str, set[str]] = {}
    excused = set()
    for found in objects:
        where = directories(found, library_path, system)
        for name in found.needed:
            if Path(name).exists() if "/" in name else any(Path(d, name).exists() for d in where):
                continue
            beside = _site(found.path) and _site(found.path) in sites.get(name, ())
            if beside or DRIVER_LIBRARIES.match(name):
                excused.add(name)
            else:
                lacks.setdefault(found.path, set()).add(name)
    plugins = _plugins(objects, lacks)
    for path, names in lacks.items():
        if path in plugins:
            excused |= names
        else:
            missing += [f"{path} needs {name}" for name in names]
    single = sorted(found.path for found in objects if SINGLE_LIBRARIES.match(found.name))
    return {
        "objects": len(objects),
        "missing": sorted(missing),
        "excused": sorted(excused),
        "single": single,
    }


def _plugins(objects: list[Object], lacks: dict[str, set[str]]) -> set[str]:
    """Return the objects that lack only libraries of a host, and that only their like lean on."""
    plugins = {
        found.path
        for found in objects
        if not found.executable
        and found.path in lacks
        and all(HOST_LIBRARIES.match(name) for name in lacks[found.path])
    }
    while True:
        leaning = {name for found in objects if found.path not in plugins for name in found.needed}
        kept = {path for path in plugins if path.rpartition("/")[2] not in leaning}
        if kept == plugins:
            return plugins
        plugins = kept


def _objects(root: str) -> tuple[list[Object], list[str]]:
    objects, unreadable = [], []
    for directory, below, files in os.walk(root):
        below.sort()
        for name in sorted(files):
            path = f"{directory}/{name}"
            if Path(path).is_symlink() or not (".so" in name or os.access(path, os.X_OK)):
                continue
            try:
                found = read_object(path)
            except (OSError, ValueError, struct.error) as error:
                unreadable.append(f"{path}: {error}")
                continue
            if found is not None:
                objects.append(found)
    return objects, unreadable


def _site(path: str) -> str:
    before, site, _ = path.partition("/site-packages/")
    return before + site if site else ""


def try_imports(modules: list[str]) -> tuple[dict[str, str | None], dict[str, object]]:
    """Import each module in a process of its own, and ask it how it was built.

    Returns
    -------
    tuple
        Module → None for those that import, else the reason; and module → what those say of their
        build that can.
    """
    reasons: dict[str, str | None] = {}
    builds: dict[str, object] = {}
    for name in modules:
        reasons[name], build = _try_import(name)
        if build is not None:
            builds[name] = build
    return reasons, builds


def _try_import(name: str) -> tuple[str | None, object]:
    # The image's own Python, which may be older than the one that runs this.
    done = subprocess.run(
        ["python", "-s", "-c", _IMPORT, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False
    )
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}", None
    if done.returncode != 0:
        return done.stdout.decode(errors="replace") or f"exit code {done.returncode}", None
    try:
        return None, json.loads(done.stdout) if done.stdout else None
    except ValueError:
        return None, None


def check_horovod(modules: list[str]) -> dict[str, list[str]] | None:
    """Return what ``horovodrun --check-build`` marks as built, by its headings; None without Horovod."""
    if not any(name.split(".")[0] == "horovod" for name in modules):
        return None
    argv = ["horovodrun", "--check-build"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHECK_BUILD_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, list[str]] = {}
    heading = ""
    for line in done.stdout.decode(errors="replace").splitlines():
        title = re.match(r"Available (?:Tensor )?(\w+):", line.strip())
        heading = title[1].lower() if title else heading
        mark = re.match(r"\s*\[X\] (\S+)", line)
        if mark and heading:
            found.setdefault(heading, []).append(mark[1])
    return found


def labels() -> object:
    """Return the image's labels as Apptainer reads them; None where there are none."""
    try:
        return json.loads(Path("/.singularity.d/labels.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def lock_digest() -> str:
    """Return ``sha256:…`` over the lock that the image carries; empty where there is none."""
    try:
        return "sha256:" + hashlib.sha256(Path("/.envbuild/lock.yaml").read_bytes()).hexdigest()
    except OSError:
        return ""


def accelerator() -> str:
    """Return what the lock that the image carries says that it is for; empty where it says nothing."""
    try:
        text = Path("/.envbuild/lock.yaml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    found = re.search(r"^accelerator: ['\"]?([a-z]+(?:@[0-9.]+)?)['\"]?$", text, flags=re.MULTILINE)
    return found[1] if found else ""


def main(root: str, modules: list[str]) -> None:
    """Print the facts as one line of JSON."""
    library_path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    facts: dict[str, object] = {"format": FORMAT, "machine": platform.machine(), "labels": labels()}
    facts["lock_digest"] = lock_digest()
    facts.update(scan(root, library_path))
    facts["imports"], facts["builds"] = try_imports(modules)
    facts["horovod"] = check_horovod(modules)
    facts["accelerator"] = accelerator()
    sys.stdout.write(json.dumps(facts, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
