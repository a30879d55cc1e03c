"""Unpack wheels with PyPA's installer, and compile their modules with the Python of the image.

Sources: the wheel format (PEP 427); hash-based .pyc files (PEP 552); Python 2.7's import.c (a .pyc holds the
time of its source).
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.build.sandbox import MEMORY_BYTES, Sandbox
from envbuild.errors import BuildError
from envbuild.plan.model import Interpreter
from envbuild.store.tree import walk
from envbuild.system import host
from envbuild.system.apptainer import Bind

# The 375 wheels of a large environment unpack to at most 7 times their size; deflate allows 1,000 times.
_MAX_RATIO = 100
_FREE_BYTES = 64 << 20

# Bytecode has at most three times the size of its source in the wheels of the recipes.
_BYTECODE_RATIO = 16
_BYTECODE_BYTES = 64 << 10
# One core of an old machine compiles 1 MB of source a second; a full file system may make it wait.
_COMPILE_S = 120.0
_COMPILE_BYTES_PER_S = 100_000
_COMPILE_OUTPUT_BYTES = 1 << 20
# What an image prints as it starts comes before; no text holds it.
BYTECODE_FOLLOWS = b"\0bytecode\0"

# Run in the sandbox, by a Python 2.7 or 3 that no package can change but that a stranger may have made: it
# sees the modules read-only and answers on stdout, with number, size and bytecode of each. A module that is
# not valid for this version of Python has no answer.
# Before 3.11 an object is marked for later reference if anything else in memory points to it, such as code
# compiled before: there all bytecode is made while something points to each object.
_COMPILE = """\
import marshal, os, struct, sys

workers = int(sys.argv[1])
modules = getattr(sys.stdin, "buffer", sys.stdin).read().split(b"\\0")
paths, shown = modules[0::2], modules[1::2]
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
answers.write(b"\\0bytecode\\0")
answers.flush()

def hold(value, held):
    held.append(value)
    parts = value if isinstance(value, (tuple, frozenset)) else ()
    if hasattr(value, "co_code"):
        parts = [getattr(value, name) for name in dir(value) if name.startswith("co_")]
    for part in parts:
        hold(part, held)

def compiled3(path, shown):
    import importlib.util
    with open(path, "rb") as file:
        source, name = file.read(), os.fsdecode(shown)
    code, held = compile(source, name, "exec", dont_inherit=True), []
    if sys.version_info < (3, 11):
        code = marshal.loads(marshal.dumps(code))
        hold(code, held)
    # PEP 552: based on the hash of the source, which is not compared.
    head = importlib.util.MAGIC_NUMBER + struct.pack("<L", 1) + importlib.util.source_hash(source)
    return head + marshal.dumps(code)

def compiled2(path, shown):
    import imp
    with open(path, "U") as file:
        code = compile(file.read(), shown, "exec")
    return imp.get_magic() + struct.pack("<L", int(os.stat(path).st_mtime)) + marshal.dumps(code)

compiled = compiled2 if sys.version_info[0] == 2 else compiled3
taken, given = os.pipe()
os.write(given, b".")
children = []
for worker in range(workers):
    child = os.fork()
    if not child:
        for number in range(worker, len(paths), workers):
            try:
                bytecode = compiled(paths[number], shown[number])
            except Exception:
                continue
            os.read(taken, 1)
            answers.write(struct.pack("<LL", number, len(bytecode)) + bytecode)
            answers.flush()
            os.write(given, b".")
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
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
    compile_sites(roots, sites, python=python, version=interpreter.version, sandbox=sandbox, log=log)


def compile_sites(
    roots: Path, sites: Sequence[str], *, python: str, version: str, sandbox: Sandbox, log: Path
) -> None:
    """Compile the modules below directories of packages, as `compile_modules`.

    `python` is the program in the sandbox that compiles, `version` its version (``3.11``). It decides the
    bytecode of these modules and nothing else: it can write no file of this machine.
    """
    modules = list(_modules(roots, sites))
    if not modules:
        return
    answers = _Bytecode(modules, version, log)
    sandbox.run(
        # Not -I or -E: before 3.11 a module's sets are in the order of hashes, whose seed the sandbox sets.
        [python, "-s", "-S", "-W", "ignore", "-c", _COMPILE, str(min(host.cores(), len(modules)))],
        binds=[Bind(source=roots.absolute(), target="/mnt")],
        env={},
        log=log,
        what="the modules could not be compiled",
        timeout_s=_COMPILE_S + sum(module.size_bytes for module in modules) / _COMPILE_BYTES_PER_S,
        stdin=b"\0".join(name for module in modules for name in (module.in_sandbox, module.shown)),
        receive=answers.add,
        most_bytes=_COMPILE_OUTPUT_BYTES,
        memory_bytes=MEMORY_BYTES,
    )
    answers.finish()
    make_uniform(roots)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """A source file of a wheel."""

    path: Path
    in_sandbox: bytes
    shown: bytes
    """Its path in the image, which its bytecode names."""
    size_bytes: int


def _modules(roots: Path, sites: Sequence[str]) -> Iterator[_Module]:
    """Yield the modules of each root, the largest first: one of these at the end would be the only work left.

    Those of test suites are left out.
    """
    found = []
    for root in roots.iterdir():
        for site in sites:
            for directory, below, names in os.walk(f"{root}{site}"):
                below[:] = [name for name in below if name not in ("test", "tests", "__pycache__")]
                for path in (Path(directory, name) for name in names if name.endswith(".py")):
                    if path.is_file():
                        shown = os.fsencode(f"/{path.relative_to(root)}")
                        in_sandbox = os.fsencode(f"/mnt/{path.relative_to(roots)}")
                        size_bytes = path.stat().st_size
                        found.append(
                            _Module(path=path, in_sandbox=in_sandbox, shown=shown, size_bytes=size_bytes)
                        )
    yield from sorted(found, key=lambda module: (-module.size_bytes, module.in_sandbox))


class _Bytecode:
    """Writes the bytecode that a sandbox sends beside its modules; the sandbox may be a stranger's."""

    _HEADER = struct.Struct("<LL")

    def __init__(self, modules: Sequence[_Module], version: str, log: Path) -> None:
        self._modules, self._log = modules, log
        self._tag = None if version.startswith("2.") else f"cpython-{version.replace('.', '')}"
        self._answered: set[int] = set()
        self._pending = bytearray()
        self._has_begun = False
        self._text_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the answers; BuildError if they cannot be such answers."""
        self._pending += chunk
        if not self._has_begun:
            self._skip_text()
        while self._has_begun and len(self._pending) >= self._HEADER.size:
            number, size_bytes = self._HEADER.unpack_from(self._pending)
            if number >= len(self._modules) or number in self._answered:
                raise self._refused("another answer than bytecode")
            module = self._modules[number]
            if size_bytes > _BYTECODE_BYTES + _BYTECODE_RATIO * module.size_bytes:
                raise self._refused(f"{size_bytes} bytes of bytecode for `{os.fsdecode(module.shown)}`")
            end = self._HEADER.size + size_bytes
            if len(self._pending) < end:
                return
            self._write(module.path, self._pending[self._HEADER.size : end])
            self._answered.add(number)
            del self._pending[:end]

    def finish(self) -> None:
        """Check that there were answers, and that they ended with a whole one."""
        if not self._has_begun:
            raise self._refused("no bytecode")
        if self._pending:
            raise self._refused("an answer that is not whole")

    def _skip_text(self) -> None:
        """Move what comes before the answers to the log."""
        text, mark, answers = bytes(self._pending).partition(BYTECODE_FOLLOWS)
        self._has_begun = bool(mark)
        # The end may be the beginning of the mark.
        lengths = range(0 if mark else min(len(text), len(BYTECODE_FOLLOWS) - 1), -1, -1)
        end = next(length for length in lengths if text.endswith(BYTECODE_FOLLOWS[:length]))
        self._pending = bytearray(answers if mark else text[len(text) - end :])
        text = text[: len(text) - end]
        self._text_bytes += len(text)
        if self._text_bytes > _COMPILE_OUTPUT_BYTES:
            raise self._refused("no bytecode, but text without end")
        with self._log.open("ab") as log:
            log.write(text)

    def _write(self, module: Path, bytecode: bytearray) -> None:
        name = module.name.removesuffix(".py")
        path = module.with_name(f"{name}.pyc")
        if self._tag is not None:
            path = module.parent / "__pycache__" / f"{name}.{self._tag}.pyc"
        # A wheel may have a file or a directory in their places: then its module has no bytecode.
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytecode)

    @staticmethod
    def _refused(answer: str) -> BuildError:
        return BuildError(
            f"the Python in the sandbox does not compile modules: it sent {answer}",
            hint="do not use an image or base whose Python does that",
        )


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
