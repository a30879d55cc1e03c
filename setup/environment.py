"""Make .venv from the hashed lists in requirements/, or renew those lists.

requirements/run.txt holds what envbuild runs with: its dependencies, uv, and the backend that
builds envbuild itself. requirements/dev.txt holds what tests, linters and documentation need
beyond that. pip installs both, so that all of its settings hold: indexes, directories, certificates.

Exit codes: 0 done, 5 this machine lacks something.
"""

import argparse
import ast
import fcntl
import hashlib
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import common
from common import SetupError

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "made-from.json"
"""Digests of what .venv is made from, by the name of the list; written once all of it is installed."""
RUN = ROOT / "requirements" / "run.txt"
DEV = ROOT / "requirements" / "dev.txt"
PYPROJECT = ROOT / "pyproject.toml"
OLDEST_PYTHON = (3, 11)
EDITABLE_BACKEND = "editables"
"""What hatchling needs, beyond its own requirements, for an editable installation."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let a second `make` wait, rather than fill the same environment."""
    descriptor = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def digests() -> dict[str, str]:
    """Return the digest of all that each list's part of .venv depends on."""
    interpreter = f"{os.path.realpath(sys.executable)} {sys.version}"
    # The scripts in .venv name their interpreter by path, so the place counts as well.
    files = [path.read_text() for path in (RUN, PYPROJECT, Path(__file__))]
    run = json.dumps([*files, interpreter, str(VENV)])
    return {
        RUN.name: hashlib.sha256(run.encode()).hexdigest(),
        DEV.name: hashlib.sha256(DEV.read_bytes()).hexdigest(),
    }


def pip_install(*arguments: str) -> None:
    """Install into .venv exactly what the arguments name."""
    words = [str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
    try:
        common.run([*words, *arguments])
    except SetupError as error:
        hint = "see that the network and pip's index can be reached; PIP_INDEX_URL names another index"
        raise SetupError(str(error), hint) from error


def ask_index(requirements: Path) -> None:
    """Ask pip's index for the first package of a list, once.

    If no index can be reached, an installation tries for a long time, and does not say what it asked.
    """
    first = entries(re.sub(r"#.*\n", "", requirements.read_text()))[0].split()[0]
    with tempfile.TemporaryDirectory() as directory:
        words = [str(PYTHON), "-m", "pip", "download", "-vv", "--disable-pip-version-check", "--no-deps"]
        words += ["--only-binary", ":all:", "--retries", "0", "--timeout", "4", "-d", directory, first]
        done = common.capture(words)
    # pip hides passwords of addresses itself.
    failed = re.search(r"Could not fetch URL (\S+): (.*?)(?: - skipping)?$", done.stdout, re.MULTILINE)
    if done.returncode != 0 and failed is not None:
        asked, answer = failed.groups()
        # Older pips show urllib3's exceptions, each in the next.
        errno = re.search(r"\[Errno -?[0-9]+\] [\w ]+", answer)
        said = errno[0] if errno else answer
        raise SetupError(
            f"pip cannot fetch Python packages: {asked} was asked, and answered: {said}",
            "name an index that this machine reaches, for all of your pips:\n"
            "  python3 -m pip config --user set global.index-url https://INDEX/simple\n"
            "or for this time: PIP_INDEX_URL=https://INDEX/simple make …\n"
            "if root's pip works here, `sudo python3 -m pip config list` shows its index, and\n"
            "`sudo python3 -m pip config --global set global.index-url …` gives it to all users",
        )


def install_list(requirements: Path) -> None:
    """Install a hashed list; what is there already stays."""
    ask_index(requirements)
    print(f"venv: installing {requirements.relative_to(ROOT)} into {VENV}", flush=True)
    # Wheels only: a source distribution would fetch its build requirements without hashes.
    pip_install("--only-binary", ":all:", "--require-hashes", "-r", str(requirements))


def make(*, dev: bool) -> None:
    """Bring .venv up to date: add what is missing, or make it anew if its contents have changed.

    Parameters
    ----------
    dev : bool
        Whether dev.txt must be installed. What was installed before stays without it, too.
    """
    installed: dict[str, str] = json.loads(STAMP.read_text()) if STAMP.exists() else {}
    wanted = digests()
    if not dev and DEV.name not in installed:
        del wanted[DEV.name]
    if installed == wanted:
        print("venv: up to date")
        return
    if not os.access(VENV if VENV.exists() else ROOT, os.W_OK):
        raise SetupError(
            f"{VENV} is out of date, and you may not write to it",
            f"ask its owner to run `make venv` in {ROOT}, or use a checkout of your own",
        )
    if not installed or any(wanted[name] != digest for name, digest in installed.items()):
        # Without its stamp, an environment that is half made counts as missing.
        STAMP.unlink(missing_ok=True)
        try:
            common.run([sys.executable, "-m", "venv", "--clear", str(VENV)])
        except SetupError as error:
            raise SetupError(
                str(error), "Debian has Python's venv apart: `apt install python3-venv`"
            ) from error
        install_list(RUN)
        # The backend is installed by now, so nothing is fetched to build envbuild.
        pip_install("--no-build-isolation", "--editable", str(ROOT))
    if DEV.name in wanted:
        install_list(DEV)
    STAMP.write_text(json.dumps(wanted))
    print("venv: done")


def uv_settings(python: str) -> dict[str, str]:
    """Pass the main index and certificates of a Python's pip to uv, which reads none of pip's settings.

    By environment rather than by arguments, because URLs may hold credentials. Variables that the
    caller has set for uv stay.
    """
    listing = common.capture([python, "-m", "pip", "config", "list"]).stdout
    settings = dict(line.split("=", 1) for line in listing.splitlines() if "=" in line)
    environ = {"UV_NO_PROGRESS": "1", "UV_SYSTEM_CERTS": "1"}
    # Where pip's sections disagree, the last of these wins, as in pip.
    for section in ("global", "install", ":env:"):
        for option, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE")):
            if f"{section}.{option}" in settings:
                environ[variable] = str(ast.literal_eval(settings[f"{section}.{option}"])).strip()
    return {**environ, **os.environ}


def entries(requirements: str) -> list[str]:
    """Split a requirements file into its entries: each an unindented line with the indented lines below."""
    return re.split(r"\n(?=\S)", requirements.strip())


def update() -> None:
    """Resolve the newest versions that pyproject.toml allows, and write both lists.

    The lists hold for every supported Python and every platform. Only the main index is asked:
    unlike a local directory, it has all files of a version, and so their hashes.
    """
    make(dev=False)
    compile_ = [
        str(VENV / "bin" / "uv"), "pip", "compile", "-q", "--upgrade", "--universal",
        "--python-version", ".".join(map(str, OLDEST_PYTHON)), "--generate-hashes",
        "--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header", str(PYPROJECT),
    ]  # fmt: skip
    env = uv_settings(str(PYTHON))
    backend = tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "backend.in").write_text("\n".join([*backend, EDITABLE_BACKEND]))
        compile_.append(str(directory / "backend.in"))
        run, everything = directory / "run.txt", directory / "everything.txt"
        common.run([*compile_, "-o", str(run)], env=env)
        common.run([*compile_, "--all-extras", "-c", str(run), "-o", str(everything)], env=env)
        needed_to_run = entries(run.read_text())
        beyond = [entry for entry in entries(everything.read_text()) if entry not in needed_to_run]
    for path, kept in ((RUN, needed_to_run), (DEV, beyond)):
        path.write_text("\n".join(["# Written by `make update-requirements`.", *kept]) + "\n")
        print(f"venv: wrote {path.relative_to(ROOT)}")


def main() -> None:
    """Make .venv, or renew the lists."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dev", action="store_true", help=f"install {DEV.name} as well as {RUN.name}")
    parser.add_argument("--update", action="store_true", help="renew both lists instead")
    options = parser.parse_args()
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer is needed, not {sys.version}")
    # Other users must be able to run what root installs, whatever root's umask.
    os.umask(0o022)
    with one_at_a_time():
        if options.update:
            update()
        else:
            make(dev=options.dev)


if __name__ == "__main__":
    sys.exit(common.main_guard(main))
