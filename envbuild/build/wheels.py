"""Unpack wheels with PyPA's installer, and compile their modules with the Python of the image.

Sources: the wheel format (PEP 427); hash-based .pyc files (PEP 552); Python 2.7's import.c (a .pyc holds the
time of its source).
"""

from __future__ import annotations

import os
import stat
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from envbuild.build.sandbox import Sandbox
from envbuild.errors import BuildError
from envbuild.plan.model import Interpreter
from envbuild.store.tree import walk
from envbuild.system import host
from envbuild.system.apptainer import Bind

# The 375 wheels of a large environment unpack to at most 7 times their size; deflate allows 1,000 times.
_MAX_RATIO = 100
_FREE_BYTES = 64 << 20

# Run in the sandbox by a Python that no package can change. Each directory of /mnt is a root.
# Modules of test suites, or not valid for this version of Python, stay without bytecode.
# Before 3.11 an object is marked for later reference if anything else in memory points to it, such as code
# compiled before: there all bytecode is written again while something points to each object.
_COMPILE = """\
import compileall, importlib.util, marshal, os, py_compile, sys

workers, sites = int(sys.argv[1]), sys.argv[2:]
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
modules = []
for root in sorted(os.listdir("/mnt")):
    top = "/mnt/" + root
    for site in sites:
        for directory, below, files in os.walk(top + site):
            below[:] = [name for name in below if name not in ("test", "tests", "__pycache__")]
            for name in files:
                if name.endswith(".py"):
                    modules.append((os.path.join(directory, name), directory[len(top):]))
modules.sort(key=lambda module: (-os.path.getsize(module[0]), module))

def hold(value, held):
    held.append(value)
    parts = value if isinstance(value, (tuple, frozenset)) else ()
    if hasattr(value, "co_code"):
        parts = [getattr(value, name) for name in dir(value) if name.startswith("co_")]
    for part in parts:
        hold(part, held)

def write_again(path):
    with open(path, "r+b") as file:
        head, code, held = file.read(16), marshal.load(file), []
        hold(code, held)
        file.seek(len(head))
        file.write(marshal.dumps(code))
        file.truncate()

children = []
for number in range(workers):
    child = os.fork()
    if not child:
        for path, place in modules[number::workers]:
            done = compileall.compile_file(path, ddir=place, quiet=2, invalidation_mode=mode)
            bytecode = importlib.util.cache_from_source(path)
            if done and sys.version_info < (3, 11) and os.path.isfile(bytecode):
                write_again(bytecode)
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""
_COMPILE_PYTHON2 = """\
import compileall, os, sys

sites = sys.argv[2:]
for root in sorted(os.listdir("/mnt")):
    top = "/mnt/" + root
    for site in sites:
        for directory, below, files in os.walk(top + site):
            below[:] = sorted(name for name in below if name not in ("test", "tests"))
            for name in sorted(files):
                if name.endswith(".py"):
                    compileall.compile_file(os.path.join(directory, name), directory[len(top):], quiet=1)
"""


def unpack_wheel(wheel: Path, root: Path, *, prefix: str, interpreter: Interpreter, python: str) -> None:
    """Unpack a verified wheel below a prefix of the image (``/opt/env``), as pip would install it there.

    `root` is the root of the tree, made if absent; `python` runs the wheel's scripts in the image.
    BuildError: the wheel is malformed, or would write outside of the prefix.
    """
    name = wheel.name.partition("-")[0]
    site = site_packages(prefix, interpreter)
    headers = f"{prefix}/include/python{interpreter.version}/{name}"
    scheme = {
        "purelib": site,
        "platlib": site,
        "scripts": f"{prefix}/bin",
        "data": prefix,
        "headers": headers,
    }
    unpack_to(wheel, scheme, root, python=python)
    make_uniform(root)


def unpack_to(wheel: Path, scheme: Mapping[str, str], root: Path, *, python: str) -> None:
    """Unpack a wheel into the directories of an installation scheme below a root; as `unpack_wheel`."""
    # Imported late: most commands do not need it.
    from installer import install  # noqa: PLC0415
    from installer.destinations import SchemeDictionaryDestination  # noqa: PLC0415
    from installer.sources import WheelFile  # noqa: PLC0415

    destination = SchemeDictionaryDestination(
        dict(scheme), interpreter=python, script_kind="posix", destdir=str(root)
    )
    try:
        _check_size(wheel)
        with warnings.catch_warnings(), WheelFile.open(wheel) as source:
            # Its warnings are about the wheel, but name lines of this file.
            warnings.simplefilter("ignore")
            install(source, destination, additional_metadata={"INSTALLER": b"envbuild\n"})
    except Exception as error:  # a malformed wheel can raise anything
        raise BuildError(
            f"the wheel `{wheel.name}` could not be unpacked: {error}",
            hint="pin another version of it under `packages.python` of the spec",
        ) from error


def _check_size(wheel: Path) -> None:
    """Reject a wheel that unpacks to far more than any real one; `zipfile` reads no more than is declared."""
    with zipfile.ZipFile(wheel) as archive:
        size_bytes = sum(entry.file_size for entry in archive.infolist())
    if size_bytes > _MAX_RATIO * wheel.stat().st_size + _FREE_BYTES:
        raise ValueError(f"it has {wheel.stat().st_size} bytes and would unpack to {size_bytes}")


def compile_modules(
    roots: Path, *, prefixes: Collection[str], interpreter: Interpreter, sandbox: Sandbox, log: Path
) -> None:
    """Compile the modules of unpacked wheels in one start of the sandbox.

    `roots` holds one directory for each wheel, and nothing else.
    """
    legacy = interpreter.version.startswith("2.")
    python = f"/usr/bin/python{interpreter.version}" if legacy else "/usr/bin/python3"
    sites = [site_packages(prefix, interpreter) for prefix in sorted(prefixes)]
    compile_sites(roots, sites, python=python, legacy=legacy, sandbox=sandbox, log=log)


def compile_sites(
    roots: Path, sites: Sequence[str], *, python: str, sandbox: Sandbox, log: Path, legacy: bool = False
) -> None:
    """Compile the modules below directories of packages, as `compile_modules`.

    `python` is the program in the sandbox that compiles, `legacy` whether it is Python 2.7.
    """
    script = _COMPILE_PYTHON2 if legacy else _COMPILE
    sandbox.run(
        # Not -I or -E: before 3.11 a module's sets are in the order of hashes, whose seed the sandbox sets.
        [python, "-s", "-S", "-c", script, str(host.cores()), *sites],
        binds=[Bind(source=roots.absolute(), target="/mnt", writable=True)],
        env={},
        log=log,
        what="the modules could not be compiled",
    )
    make_uniform(roots)


def site_packages(prefix: str, interpreter: Interpreter) -> str:
    """Return the directory below a prefix in which an interpreter looks for packages."""
    return f"{prefix}/lib/python{interpreter.version}/site-packages"


def make_uniform(root: Path) -> None:
    """Give all paths modes that let every user read them, and all files one time.

    A .pyc of Python 2.7 is stale if the time of its source has changed. All times in an image are the epoch,
    so the source must have that time when it is compiled.
    """
    for path, status in list(walk(root)):
        if stat.S_ISLNK(status.st_mode):
            continue
        mode = 0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o644
        if stat.S_IMODE(status.st_mode) != mode:
            path.chmod(mode)
        os.utime(path, (0, 0))
