"""Make envbuild's own virtual environment from requirements.lock, or renew that lock.

The environment is made anew when what it is made from has changed, and left alone otherwise.
Everything that goes into it is named with its hashes in the lock: the dependencies, uv that
installs them, and the backend that builds envbuild itself.

Exit codes: 0 done, 5 this machine lacks something.
"""

import argparse
import ast
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import common
from common import SetupError

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "made-from.sha256"
LOCK = ROOT / "requirements.lock"
PYPROJECT = ROOT / "pyproject.toml"
OLDEST_PYTHON = (3, 11)
EDITABLE_BACKEND = "editables"
"""What hatchling asks for, beyond its own requirements, once an installation is to be editable."""


def fingerprint(lock: str, pyproject: str, *, interpreter: str, place: str, recipe: str) -> str:
    """Digest of everything that the environment is made from.

    Of pyproject.toml only what an installation depends on counts, so that a changed linter rule
    does not cost a new environment.

    Parameters
    ----------
    lock, pyproject : str
        The text of the two files.
    interpreter : str
        Which Python, down to its build.
    place : str
        Where the environment lies: its scripts name their interpreter by path.
    recipe : str
        How it is made: this file's own text.
    """
    tables = tomllib.loads(pyproject)
    installed = [tables.get("build-system"), tables.get("project"), tables.get("tool", {}).get("hatch")]
    payload = json.dumps([lock, installed, interpreter, place, recipe], sort_keys=True)
    return hashlib.sha256(payload.encode()).hexdigest()


def locked_requirement(lock: str, name: str) -> str:
    """Cut the lines of one distribution, hashes included, out of a requirements file.

    Raises
    ------
    ValueError
        The file does not pin it.
    """
    match = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*\n?", lock, flags=re.MULTILINE)
    if match is None:
        raise ValueError(f"`{name}` is not pinned in {LOCK.name}")
    return match.group()


def parse_pip_config(listing: str) -> dict[str, str]:
    """Read the output of ``pip config list``; where an option is set twice, pip's own order decides.

    Returns
    -------
    dict of str to str
        Option name, such as ``extra-index-url``, to its value.
    """
    strength = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = re.fullmatch(r"(global|install|:env:)\.([\w-]+)=(.*)", line.strip())
        if match is None:
            continue
        rank = strength[match[1]]
        if rank >= found.get(match[2], (0, ""))[0]:
            found[match[2]] = (rank, str(ast.literal_eval(match[3])))
    return {name: value for name, (_, value) in found.items()}


def uv_environment(
    pip: Mapping[str, str], environ: Mapping[str, str], *, every_origin: bool
) -> dict[str, str]:
    """Tell uv, which reads none of pip's settings, where this machine's pip finds packages.

    Passed by environment rather than by arguments: addresses may hold credentials. What the
    caller has set for uv itself stays.

    Parameters
    ----------
    pip : mapping of str to str
        pip's options, as `parse_pip_config` returns them.
    environ : mapping of str to str
        The caller's environment.
    every_origin : bool
        Whether to add pip's further indexes and directories to its main index.
    """
    wanted = {"UV_NO_PROGRESS": "1", "UV_SYSTEM_CERTS": "1"}
    # Copies: hard links into a cache would carry the modes that some other umask once gave them.
    wanted["UV_LINK_MODE"] = "copy"
    if "index-url" in pip:
        wanted["UV_DEFAULT_INDEX"] = pip["index-url"].strip()
    if every_origin:
        if "extra-index-url" in pip:
            wanted["UV_INDEX"] = " ".join(pip["extra-index-url"].split())
            # As pip does. The hashes settle which file is meant, so a stranger's index gains nothing.
            wanted["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        if "find-links" in pip:
            wanted["UV_FIND_LINKS"] = ",".join(pip["find-links"].split())
        if pip.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
            wanted["UV_NO_INDEX"] = "1"
    if "cert" in pip:
        wanted["SSL_CERT_FILE"] = pip["cert"].strip()
    return {**wanted, **environ}


def uv_settings(*, every_origin: bool) -> dict[str, str]:
    """Ask the environment's own pip how this machine is configured, for uv."""
    listing = common.capture([str(VENV / "bin" / "python"), "-m", "pip", "config", "list"])
    return uv_environment(parse_pip_config(listing.stdout), os.environ, every_origin=every_origin)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let a second `make` wait, rather than fill the same environment."""
    descriptor = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def current_fingerprint() -> str:
    """Digest of what the environment would be made from now."""
    if not LOCK.exists():
        raise SetupError(f"{LOCK.name} is missing", "make it with `make update-requirements`")
    return fingerprint(
        LOCK.read_text(),
        PYPROJECT.read_text(),
        interpreter=f"{os.path.realpath(sys.executable)} {sys.version}",
        place=str(VENV),
        recipe=Path(__file__).read_text(),
    )


def bootstrap(lock: str) -> None:
    """Make an environment that holds pip and the locked uv, and nothing else."""
    common.run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(locked_requirement(lock, "uv"))
        requirements.flush()
        common.run(
            [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check",
             "--no-deps", "--require-hashes", "-r", requirements.name]
        )  # fmt: skip


def make() -> None:
    """Make the environment anew, unless it is what it should be."""
    wanted = current_fingerprint()
    if (VENV / "bin" / "python").exists() and STAMP.exists() and STAMP.read_text() == wanted:
        print("venv: up to date")
        return
    if not os.access(VENV if VENV.exists() else ROOT, os.W_OK):
        raise SetupError(
            f"{VENV} is out of date, and belongs to somebody else",
            f"have its owner run `make venv` in {ROOT}, or work in a checkout of your own",
        )
    # Without its stamp a half-made environment is never taken for a whole one.
    STAMP.unlink(missing_ok=True)
    bootstrap(LOCK.read_text())
    python, uv = str(VENV / "bin" / "python"), str(VENV / "bin" / "uv")
    env = uv_settings(every_origin=True)
    # Later starts are faster by half with bytecode, and other users could not write it here.
    install = [uv, "pip", "install", "-q", "--python", python, "--compile-bytecode"]
    common.run([*install, "--require-hashes", "-r", str(LOCK)], env=env)
    # Its backend is in the lock and installed by now: nothing unpinned is fetched to build it.
    common.run([*install, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], env=env)
    STAMP.write_text(wanted)
    print(f"venv: made {VENV}")


def update() -> None:
    """Resolve the newest versions that pyproject.toml allows, and write them to the lock.

    Holds for every Python from the oldest that is supported and every platform; asks the main
    index alone, which unlike a local directory knows all the files of a version and their hashes.
    """
    uv = VENV / "bin" / "uv"
    if not uv.exists():
        common.run([sys.executable, "-m", "venv", "--clear", str(VENV)])
        common.run([str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "uv"])
    build = tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as directory:
        backend = Path(directory, "build-system.in")
        backend.write_text("\n".join([*build, EDITABLE_BACKEND]) + "\n")
        fresh = Path(directory, "fresh.lock")
        common.run(
            [str(uv), "pip", "compile", "-q", "--upgrade", "--universal",
             "--python-version", ".".join(map(str, OLDEST_PYTHON)), "--all-extras", "--generate-hashes",
             "--no-emit-index-url", "--no-emit-find-links", "--no-annotate",
             "--custom-compile-command", "make update-requirements",
             "--output-file", str(fresh), PYPROJECT.name, str(backend)],
            env=uv_settings(every_origin=False), cwd=str(ROOT),
        )  # fmt: skip
        shutil.copyfile(fresh, LOCK)
    print(f"venv: wrote {LOCK.name}")


def main() -> None:
    """Make the environment, or renew the lock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--update", action="store_true", help=f"renew {LOCK.name} instead")
    options = parser.parse_args()
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer is needed, not {sys.version}")
    # Whoever runs the tests must be able to read what root installs, whatever root's umask.
    os.umask(0o022)
    with one_at_a_time():
        if options.update:
            update()
        else:
            make()


if __name__ == "__main__":
    sys.exit(common.main_guard(main))
