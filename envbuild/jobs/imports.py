"""Find and import in an image the modules of its Python packages, run its tutorials; print facts as JSON.

Usage: ``python3 -I imports.py REQUEST``, the text of `request`, perhaps in several pieces. `envbuild test`
sends this file in through standard input, so it imports nothing of envbuild, and runs on Python 3.7. Modules
and scripts run by the image's own Python, which may be older.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# Runs on Python 2.7, too.
SEARCH_PATH = """\
import json, os, sys
os.write(1, json.dumps([entry for entry in sys.path if entry]).encode())
os._exit(0)
"""

# Runs on Python 2.7, too. The facts go to the real stdout; whatever a module prints, to stderr. With the
# facts comes a word that is read after the import: a module that writes facts of its own does not know it.
IMPORT = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]  # modules come from the image alone, not from the working directory
import json, os, traceback
out = os.dup(1)
os.dup2(2, 1)
name, word = sys.argv[1], int(sys.argv.pop())
facts = {"error": None, "file": ""}
try:
    try:
        from importlib.util import find_spec
    except ImportError:
        find_spec = None
    spec = find_spec(name) if find_spec else None
    if spec is not None:
        facts["file"] = spec.origin or "".join(list(spec.submodule_search_locations or ())[:1])
    __import__(name)
    if not facts["file"]:
        facts["file"] = getattr(sys.modules[name], "__file__", None) or ""
except BaseException as error:  # SystemExit at import is a failure too
    try:
        reason = "".join(traceback.format_exception_only(type(error), error))
    except BaseException:
        reason = type(error).__name__
    facts["error"] = reason[:2000] + reason[2000:][-2000:]
facts["word"] = os.read(word, 64).decode()
os.write(out, json.dumps(facts).encode())
os._exit(0)
"""

# Most modules of one distribution that are imported, and of all.
_MODULES = 64
_ALL_MODULES = 2000
_PLACES = 1000
_WORKERS = 4
_OUTPUT_BYTES = 1 << 20
_METADATA_BYTES = 1 << 20
_RECORD_BYTES = 32 << 20
_OBJECT_BYTES = 256 << 20
_REASON = 600  # characters
_GRACE_S = 2.0
_LEAST_BYTES = 4 << 30
# `a/b/__init__.py`, `a.py`, `a.cpython-311-x86_64-linux-gnu.so`: modules below a directory of packages.
_MODULE = re.compile(
    r"(?P<name>[A-Za-z_]\w*(?:/[A-Za-z_]\w*)*?)(?P<package>/__init__)?"
    r"(?:\.pyc?|(?:\.[\w-]+)+\.so|(?P<untagged>\.so))"
)
# Names that some wheels use for their tests and examples; they are imported if there is nothing else.
_ASIDE = frozenset(
    ["benchmarks", "conftest", "doc", "docs", "example", "examples", "scripts", "setup", "test", "tests"]
)
# Directories without modules, besides these.
_DATA = _ASIDE | {"bin", "data", "etc", "include", "lib", "share", "tools"}
# How a package of the time before PEP 420 says that others lie in its directory.
_NAMESPACE = re.compile(rb"extend_path|declare_namespace")
_INFO = re.compile(r"(?P<stem>.+)\.(?:dist-info|egg-info)", re.IGNORECASE)


def request(
    packages: Mapping[str, Sequence[str] | None],
    modules: Sequence[str] = (),
    scripts: Sequence[str] = (),
    *,
    sites: Sequence[str] = (),
    python: str = "python",
    flags: Sequence[str] = ("-s",),
    limit_s: float,
) -> dict[str, Any]:
    """Return what is to be tried, all within `limit_s` seconds, in the order of importance.

    `packages`: canonical name → the modules to import; None for those that its files show. `modules` and
    `scripts` (absolute paths) are tried as well. In `sites` lie packages where Python may not look: programs.
    `python` is the program that tries all, with `flags`.
    """
    return {
        "packages": {name: None if own is None else list(own) for name, own in packages.items()},
        "modules": list(modules),
        "scripts": list(scripts),
        "sites": list(sites),
        "python": python,
        "flags": list(flags),
        "limit_s": limit_s,
    }


def try_imports(
    tasks: Mapping[str, Any], *, env: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Import each module and run each script of a `request` in its own process.

    `env` is the complete environment, by default this process's. Keys of the result:

    - ``modules``: name → ``error`` (None, or the reason) and ``file`` (where it lies, links followed);
    - ``scripts``: path → None, or the reason;
    - ``search_path``: ``error``, why the image's Python does not say where it looks (empty if it does);
    - ``packages``: name → ``version`` and ``site`` of the distribution that Python finds first (links
      followed), ``modules``, ``own`` (those of them that its files show), ``plugins`` (those in a namespace
      that it shares, by an `__init__.py` that says so) and ``more`` (count of modules that are not tried); no
      entry if there is no such distribution.
    """
    runs = _Runs(tasks, dict(os.environ if env is None else env))
    found = runs.search_path()
    packages: dict[str, Any] = {}
    if isinstance(found, list):
        known = _distributions([*found, *map(Path, tasks["sites"])])
        packages = {
            name: _describe(*known[name], own) for name, own in tasks["packages"].items() if name in known
        }
    names = [module for package in packages.values() for module in package["modules"]]
    modules = list(dict.fromkeys([*tasks["modules"], *names]))[:_ALL_MODULES]
    with concurrent.futures.ThreadPoolExecutor(min(_WORKERS, len(os.sched_getaffinity(0)))) as pool:
        # Scripts first: of many modules the last may not be reached in time.
        scripts = {path: pool.submit(runs.script, path) for path in tasks["scripts"]}
        waiting = {module: pool.submit(runs.module, module) for module in modules}
    return {
        "packages": packages,
        "modules": {module: run.result() for module, run in waiting.items()},
        "scripts": {path: run.result() for path, run in scripts.items()},
        "search_path": {"error": found if isinstance(found, str) else ""},
    }


def _describe(site: Path, info: Path, own: Sequence[str] | None) -> dict[str, Any]:
    """Describe a distribution in `site`, whose metadata `info` is."""
    text = _read(info / "METADATA") or _read(info / "PKG-INFO") or _read(info)
    version = re.search(r"^Version:[ \t]*(\S+)", text.partition("\n\n")[0], re.MULTILINE)
    shown = top_modules(site, info)
    names = shown if own is None else list(own)
    return {
        "version": version[1][:128] if version else "",
        "site": os.path.realpath(site),
        "modules": names[:_MODULES],
        "own": [module for module in names[:_MODULES] if _is_below(module, shown)],
        "plugins": [module for module in names[:_MODULES] if _is_in_shared_package(site, module)],
        "more": len(names[_MODULES:]),
    }


def _distributions(path: Iterable[Path]) -> dict[str, tuple[Path, Path]]:
    """Return canonical name → directory and metadata of the distribution that Python finds first."""
    found: dict[str, tuple[Path, Path]] = {}
    for site in path:
        egg = re.fullmatch(r"([^-]+).*\.egg", site.name)
        for entry in _entries(site):
            match = _INFO.fullmatch(entry)
            stem = match["stem"] if match else egg[1] if egg and entry == "EGG-INFO" else ""
            if stem:
                found.setdefault(_canonical(stem.partition("-")[0]), (site, site / entry))
    return found


def _is_in_shared_package(site: Path, module: str) -> bool:
    """Return whether an outermost module lies in a package, so one that shares its directory with others."""
    top, _, below = module.partition(".")
    return bool(below) and (site / top / "__init__.py").is_file()


def _is_below(module: str, names: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in names)


def top_modules(site: Path, info: Path) -> list[str]:
    """Return the outermost modules of a distribution, sorted; of namespace packages what lies in them.

    Private ones, which begin with ``_``, come last. `info` is its directory of metadata, in `site`.
    """
    namespaces = set(_read(info / "namespace_packages.txt").split())
    packages: dict[str, re.Match[str]] = {}
    singles: dict[str, re.Match[str]] = {}
    for file in _listed_files(site, info):
        match = _MODULE.fullmatch(file)
        if match:
            (packages if match["package"] else singles)[match["name"].replace("/", ".")] = match
    outer: set[str] = set()
    split: set[str] = set()
    # A name comes before those below it, whose files need not be looked at.
    for name in sorted(packages):
        if outer.isdisjoint(_above(name)) and _is_module(site, packages[name]):
            is_split = name in namespaces or _is_namespace(site, packages[name])
            (split if is_split else outer).add(name)
    free = {
        name
        for name, match in singles.items()
        if name not in outer and outer.isdisjoint(_above(name)) and _is_module(site, match)
    }
    # A module hides a directory of its name that is not a package.
    free = {name for name in free if free.isdisjoint(_above(name))}
    around = {above for name in outer for above in _above(name)}
    # Beside a package a single file may be data, or a script.
    beside = {
        name for name in free if "." in name and (_parent(name) in around or _DATA & {*name.split(".")})
    }
    names = (outer | (free - beside)) or free
    # A namespace is imported with what lies in it.
    names |= {name for name in split if not any(other.startswith(f"{name}.") for other in names)}
    plain = {name for name in names if name not in _ASIDE}
    return sorted(plain or names, key=lambda name: (is_private(name), name))


def is_private(module: str) -> bool:
    """Return whether a module, or a package above it, is for its distribution alone by its name."""
    return any(part.startswith("_") for part in module.split("."))


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _listed_files(site: Path, info: Path) -> list[str]:
    """Return the files that a distribution lists, relative to `site`."""
    record = _read(info / "RECORD", _RECORD_BYTES)
    if record:
        return [os.path.normpath(_first_field(line)) for line in record.splitlines()]
    installed = _read(info / "installed-files.txt", _RECORD_BYTES)
    if installed:
        return [os.path.relpath(str(info / line), str(site)) for line in installed.splitlines()]
    names = _read(info / "top_level.txt").split()
    return [file for name in names for file in _files_of(site, name)]


def _first_field(line: str) -> str:
    """Return the first field of a line of CSV."""
    if line.startswith('"'):
        return line[1:].partition('",')[0].replace('""', '"')
    return line.partition(",")[0]


def _above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _files_of(site: Path, name: str) -> list[str]:
    """Return the files that can make a top-level name a module, relative to `site`."""
    files = [f"{name}/{entry}" for entry in _entries(site / name) if entry.startswith("__init__.")]
    return [*files, *(entry for entry in _entries(site) if entry.startswith(f"{name}."))]


def _is_module(site: Path, match: re.Match[str]) -> bool:
    """Return whether a file is there, and is a module: of an untagged library its functions say so."""
    path = site / match[0]
    if not path.is_file():
        return False
    if not match["untagged"]:
        return True
    name = "__init__" if match["package"] else match["name"].rpartition("/")[2]
    content = _read_bytes(path, _OBJECT_BYTES)
    return f"PyInit_{name}".encode() in content or f"init{name}".encode() in content


def _is_namespace(site: Path, match: re.Match[str]) -> bool:
    path = site / match[0]
    return path.suffix == ".py" and bool(_NAMESPACE.search(_read_bytes(path, 4096)))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return []


def _read(path: Path, limit_bytes: int = _METADATA_BYTES) -> str:
    return _read_bytes(path, limit_bytes).decode(errors="replace").replace("\r\n", "\n")


def _read_bytes(path: Path, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit_bytes)
    except OSError:
        return b""


class _Runs:
    """The processes of a request, which end together."""

    def __init__(self, tasks: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._python = [str(tasks["python"]), *tasks["flags"]]
        self._env = env
        self._limit_s = float(tasks["limit_s"])
        self._end = time.monotonic() + self._limit_s

    def search_path(self) -> list[Path] | str:
        """Return where the image's Python looks for modules; or why it does not answer."""
        code, output, ended = self._run([*self._python, "-c", SEARCH_PATH])
        try:
            return [Path(entry) for entry in json.loads(output.rpartition("\n")[2])[:_PLACES]]
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return ended or _shortened(output) or f"exit code {code}"

    def module(self, name: str) -> dict[str, Any]:
        """Import a module."""
        word = secrets.token_hex(16)
        reader, writer = os.pipe()
        try:
            os.write(writer, word.encode())
            os.close(writer)
            argv = [*self._python, "-c", IMPORT, name, str(reader)]
            code, output, ended = self._run(argv, passed=(reader,))
        finally:
            os.close(reader)
        try:
            facts = json.loads(output)
            error, file = facts["error"], facts["file"]
            if code or facts["word"] != word:
                raise ValueError("not the facts of this program")
            if (error is None or isinstance(error, str)) and isinstance(file, str):
                error = None if error is None else _shortened(error) or "an error without a name"
                return {"error": error, "file": os.path.realpath(file) if file[:1] == "/" else file}
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        reason = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        return {"error": ended or reason, "file": ""}

    def script(self, path: str) -> str | None:
        """Run a script as users do."""
        code, output, ended = self._run([self._python[0], path], merged=True)
        last = output.strip().rpartition("\n")[2]
        return None if code == 0 and not ended else ended or _shortened(last) or f"exit code {code}"

    def _run(
        self, argv: Sequence[str], *, merged: bool = False, passed: Sequence[int] = ()
    ) -> tuple[int, str, str]:
        """Run a program with a home where it may write; return exit code, output, and why it was ended.

        With `merged` the output is also that of stderr, and only its end is kept. It gets the descriptors
        `passed`.
        """
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            return -1, "", f"not tried: the time of {self._limit_s:g} s was over"
        home = tempfile.mkdtemp()
        try:
            try:
                process = subprocess.Popen(
                    argv,
                    cwd=home,
                    env={**self._env, "HOME": home},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT if merged else None,
                    start_new_session=True,
                    pass_fds=passed,
                )
            except OSError as error:
                return -1, "", f"{type(error).__name__}: {error}"
            output = bytearray()
            flooded = threading.Event()
            reader = threading.Thread(target=_keep, args=(process, output, flooded, merged), daemon=True)
            reader.start()
            ended = ""
            try:
                process.wait(left_s)
            except subprocess.TimeoutExpired:
                ended = f"ended after {self._limit_s:g} s"
            _kill(process)
            # A process that left the group may hold the pipe open.
            reader.join(_GRACE_S)
            if flooded.is_set():
                ended = f"ended after more than {_OUTPUT_BYTES} bytes of output"
            return process.wait(), bytes(output).decode(errors="replace"), ended
        finally:
            # What left the group may still write there.
            shutil.rmtree(home, ignore_errors=True)


def _keep(
    process: subprocess.Popen[bytes], output: bytearray, flooded: threading.Event, merged: bool
) -> None:
    """Read what a process prints; keep the end, or end the process if that is too much."""
    stream: IO[bytes] = process.stdout  # type: ignore[assignment]
    with stream:
        while True:
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                return
            output += chunk
            if len(output) > _OUTPUT_BYTES:
                del output[:-65536]
                if not merged:
                    flooded.set()
                    _kill(process)
                    return


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _shortened(text: str) -> str:
    """Return a text as one line, its middle left out if it is long."""
    line = " ".join(text.split())
    half = _REASON // 2
    return line if len(line) <= _REASON else f"{line[:half]} … {line[-half:]}"


def _limit_memory() -> None:
    """Keep an import from the memory that the machine needs itself."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = max(machine_bytes // 2, _LEAST_BYTES)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    _limit_memory()
    sys.stdout.write(json.dumps(try_imports(json.loads("".join(sys.argv[1:])))) + "\n")
