"""Compile the modules of wheels with the Python of an image, in a sandbox that sees their sources alone.

Sources: hash-based .pyc files (PEP 552); Python 2.7's import.c (a .pyc holds the time of its source).
"""

from __future__ import annotations

import os
import posixpath
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.build.sandbox import MEMORY_BYTES, Sandbox
from envbuild.errors import BuildError
from envbuild.plan.model import Interpreter
from envbuild.squashfs.writer import FilePart
from envbuild.system import host
from envbuild.system.apptainer import Bind

# Bytecode has at most three times the size of its source in the wheels of the recipes.
_BYTECODE_RATIO = 16
_BYTECODE_BYTES = 64 << 10
# One core of an old machine compiles 1 MB of source a second; a full file system may make it wait.
_COMPILE_S = 120.0
_COMPILE_BYTES_PER_S = 100_000
_COMPILE_OUTPUT_BYTES = 1 << 20
# What an image prints as it starts comes before; no text holds it.
BYTECODE_FOLLOWS = b"\0bytecode\0"
_WITHOUT_BYTECODE = frozenset({"test", "tests", "__pycache__"})

# Run in the sandbox, by a Python 2.7 or 3 that no package can change but that a stranger may have made: it
# sees the modules read-only and answers on stdout, with number, size and bytecode of each. A module that is
# not valid for this version of Python has no answer.
# Before 3.11 an object is marked for later reference if anything else in memory points to it, such as code
# compiled before: there all bytecode is made while something points to each object.
_COMPILE = """\
import marshal, os, struct, sys

workers = int(sys.argv[1])
words = getattr(sys.stdin, "buffer", sys.stdin).read().split(b"\\0")
modules = list(zip(words[0::4], map(int, words[1::4]), map(int, words[2::4]), words[3::4]))
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

def compiled3(source, shown):
    import importlib.util
    name = os.fsdecode(shown)
    code, held = compile(source, name, "exec", dont_inherit=True), []
    if sys.version_info < (3, 11):
        code = marshal.loads(marshal.dumps(code))
        hold(code, held)
    # PEP 552: based on the hash of the source, which is not compared.
    head = importlib.util.MAGIC_NUMBER + struct.pack("<L", 1) + importlib.util.source_hash(source)
    return head + marshal.dumps(code)

def compiled2(source, shown):
    import imp
    code = compile(source.replace("\\r\\n", "\\n").replace("\\r", "\\n"), shown, "exec")
    # The time of the source: all times in an image are the epoch.
    return imp.get_magic() + struct.pack("<L", 0) + marshal.dumps(code)

def read(path, offset, size):
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)

compiled = compiled2 if sys.version_info[0] == 2 else compiled3
taken, given = os.pipe()
os.write(given, b".")
children = []
for worker in range(workers):
    child = os.fork()
    if not child:
        for number in range(worker, len(modules), workers):
            path, offset, size, shown = modules[number]
            try:
                bytecode = compiled(read(path, offset, size), shown)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module to compile."""

    path: str
    """Path in the image, without a leading slash; its bytecode names it."""
    source: FilePart
    """In the directory that the sandbox sees."""


def is_compiled(path: str, sites: Iterable[str]) -> bool:
    """Return whether a file of an image is a module that gets bytecode.

    `path` has no leading slash; `sites` are directories of packages. Modules of test suites get none.
    """
    for site in sites:
        below = path.removeprefix(f"{site.strip('/')}/")
        if path.endswith(".py") and below != path:
            return _WITHOUT_BYTECODE.isdisjoint(below.split("/")[:-1])
    return False


def bytecode_path(module: str, version: str) -> str:
    """Return where a Python (``3.11``) looks for the bytecode of a module."""
    directory, name = posixpath.split(module.removesuffix(".py"))
    if version.startswith("2."):
        return f"{directory}/{name}.pyc"
    return f"{directory}/__pycache__/{name}.cpython-{version.replace('.', '')}.pyc"


def base_python(interpreter: Interpreter) -> str:
    """Return the path of the Python of a base that compiles for an interpreter."""
    is_legacy = interpreter.version.startswith("2.")
    return f"/usr/bin/python{interpreter.version}" if is_legacy else "/usr/bin/python3"


def compile_modules(
    modules: Sequence[Module], sources: Path, out: Path, *, python: str, sandbox: Sandbox, log: Path
) -> Mapping[Module, FilePart]:
    """Compile modules in one start of the sandbox; the bytecode of each becomes a part of the new file `out`.

    `sources` is a directory with their sources, which the sandbox sees, and nothing else. `python` is the
    program in the sandbox that compiles. It decides the bytecode of these modules and nothing else: it can
    write no file of this machine. A module that is not valid for it has no bytecode.
    """
    if not modules:
        return {}
    # The largest first: one of these at the end would be the only work left.
    modules = sorted(modules, key=lambda module: (-module.source.size_bytes, module.path))
    with out.open("xb") as file:
        answers = _Answers(modules, file, log)
        sandbox.run(
            # Not -I or -E: before 3.11 the sets of a module are in the order of hashes, whose seed the
            # sandbox sets.
            [python, "-s", "-S", "-W", "ignore", "-c", _COMPILE, str(min(host.cores(), len(modules)))],
            binds=[Bind(source=sources.absolute(), target="/mnt")],
            env={},
            log=log,
            what="the modules could not be compiled",
            timeout_s=_COMPILE_S + sum(module.source.size_bytes for module in modules) / _COMPILE_BYTES_PER_S,
            stdin=b"\0".join(word for module in modules for word in _question(module, sources)),
            receive=answers.add,
            most_bytes=_COMPILE_OUTPUT_BYTES,
            memory_bytes=MEMORY_BYTES,
        )
    return {module: FilePart(out, *where) for module, where in answers.finish().items()}


def _question(module: Module, sources: Path) -> tuple[bytes, ...]:
    """Return where the sandbox finds the source of a module, and the module's path in the image."""
    path = os.fsencode(f"/mnt/{module.source.path.relative_to(sources)}")
    numbers = (module.source.offset, module.source.size_bytes)
    return (path, *(b"%d" % number for number in numbers), os.fsencode(f"/{module.path}"))


class _Answers:
    """Writes the bytecode that a sandbox sends to a file; the sandbox may be a stranger's."""

    _HEADER = struct.Struct("<LL")

    def __init__(self, modules: Sequence[Module], file: BinaryIO, log: Path) -> None:
        self._modules, self._file, self._log = modules, file, log
        self._bytecode: dict[Module, tuple[int, int]] = {}
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
            if number >= len(self._modules) or self._modules[number] in self._bytecode:
                raise self._refused("another answer than bytecode")
            module = self._modules[number]
            if size_bytes > _BYTECODE_BYTES + _BYTECODE_RATIO * module.source.size_bytes:
                raise self._refused(f"{size_bytes} bytes of bytecode for `/{module.path}`")
            end = self._HEADER.size + size_bytes
            if len(self._pending) < end:
                return
            self._bytecode[module] = (self._file.tell(), size_bytes)
            self._file.write(self._pending[self._HEADER.size : end])
            del self._pending[:end]

    def finish(self) -> Mapping[Module, tuple[int, int]]:
        """Return offset and length of all bytecode in the file.

        BuildError: there were no answers, or they did not end with a whole one.
        """
        if not self._has_begun:
            raise self._refused("no bytecode")
        if self._pending:
            raise self._refused("an answer that is not whole")
        return self._bytecode

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

    @staticmethod
    def _refused(answer: str) -> BuildError:
        return BuildError(
            f"the Python in the sandbox does not compile modules: it sent {answer}",
            hint="do not use an image or base whose Python does that",
        )
