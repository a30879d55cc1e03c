"""A plain Apptainer definition file with the packages of an image: for audits, and to carry on without us.

Pure. Everything comes from a lock and a plan that may be a stranger's: each word that reaches the
shell of ``%post`` is quoted.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from envbuild.errors import RequestError
from envbuild.image.environment import PREFIX, render_script
from envbuild.image.model import Manifest
from envbuild.image.startup import run_script
from envbuild.lock.model import DebPin, Lock, PythonPin

_MPI_PREFIX = "/opt/mpi"
_PREFIXES = (PREFIX, _MPI_PREFIX, "/opt/fabric", "/opt/accel")
_SUITE = re.compile(r"[a-z][a-z0-9-]*")
# pip comes with Debian and goes again: the image has none.
_TOOLS = "python3-pip"
# In the image while it is built, where nobody else is.
_ARCHIVE = "/tmp/archive"  # noqa: S108
_PIP = (
    f"PYTHONPATH=/usr/lib/python3/dist-packages {PREFIX}/bin/python3 -m pip --disable-pip-version-check"
    " install --no-deps --ignore-installed --no-cache-dir --require-hashes {{ pip_options }}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """What a plan says beyond the lock.

    Attributes
    ----------
    files : list of (str, str, bool)
        Path, content in base64, whether it may be executed.
    links : dict of str to str
        Path → target.
    environments, patches : dict
        Layer that is built from source → its variables, and its patches (name, base64).
    debian_python : bool
        Whether the virtual environment sees Debian's own packages.
    """

    suite: str
    files: list[tuple[str, str, bool]] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    patches: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    debian_python: bool = False


def definition_file(manifest: Manifest, lock: Lock, plan: str) -> str:
    """Return the text of a definition file.

    Parameters
    ----------
    plan : str
        The plan that the image carries, as JSON.

    Raises
    ------
    RequestError
        See `check_expressible`; or its plan cannot be read.
    """
    check_expressible(lock)
    steps = _steps(plan)
    lines = [
        "Bootstrap: docker",
        f"From: debian:{steps.suite}-slim",
        "",
        *_preface(manifest, lock),
        "",
        "%arguments",
        "    pip_options=--retries=5",
        "",
        "%post",
        "    set -eu",
        "    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 TZ=UTC PYTHONDONTWRITEBYTECODE=1",
        *_debian(lock),
        *_python(lock, steps),
        *_built_from_source(lock, steps),
        *_contents(steps),
        *_cleaning(lock),
        "",
        "%environment",
        *(f"    {line}" for line in render_script(manifest.environment).splitlines()[1:]),
        "",
        "%labels",
        *(f"    {name} {value}" for name, value in _labels(manifest).items()),
        "",
        "%runscript",
        *(f"    {line}".rstrip() for line in run_script().splitlines()[1:]),
    ]
    return "\n".join(lines) + "\n"


def check_expressible(lock: Lock) -> None:
    """Refuse an image that no definition file can describe.

    Raises
    ------
    RequestError
        It has Python 2.7, or a base whose packages are not known one by one.
    """
    why = ""
    if lock.base.python.startswith("2."):
        why = "an image of Python 2.7 cannot be told as a definition file: its base has no pip"
    elif lock.base_root:
        why = (
            f"an image on the finished root `{lock.base.name}` cannot be told as a definition file: what the"
            " root is made from is not known"
        )
    if why:
        hint = "hand over the lock and what `envbuild fetch` keeps, or another format"
        raise RequestError(why, hint=hint)


def _preface(manifest: Manifest, lock: Lock) -> Iterator[str]:
    yield f"# {manifest.name} {manifest.version}: the packages of an image that envbuild made, without it."
    yield f"# From its lock {manifest.lock_digest}."
    yield "#"
    yield "# Debian's archives drop versions that were superseded. Where one is gone, put a snapshot of the"
    yield "# archive into /etc/apt/sources.list at the beginning of %post, or take the version away."
    origins = sorted({pin.origin for pin in lock.python} - {"pypi"})
    if origins:
        yield f"# Python files come from pip's own index, and from: {', '.join(origins)}. Name these with"
        yield "# apptainer build --build-arg pip_options=--find-links=PLACE IMAGE.sif FILE.def"
    yield "#"
    yield "# Not in here: the layers of the image, its mini jobs, and the same bytes for the same lock."


def _debian(lock: Lock) -> Iterator[str]:
    yield ""
    yield "    # Debian packages: the base's, then what the environment adds."
    yield "    apt-get update"
    yield "    apt-get install -y --no-install-recommends --allow-downgrades \\"
    pins: Sequence[DebPin] = sorted((*lock.base_debs, *lock.system_debs), key=lambda pin: pin.name)
    words = [shlex.quote(f"{pin.name}={pin.version}") for pin in pins]
    yield from (f"        {word} \\" for word in words[:-1])
    yield from (f"        {word}" for word in words[-1:])
    yield f"    apt-get install -y --no-install-recommends {_TOOLS}"


def _python(lock: Lock, steps: _Steps) -> Iterator[str]:
    yield ""
    yield "    # Python packages, each as the one file that the lock names."
    yield f"    mkdir -p {' '.join(_PREFIXES)}"
    words = " --system-site-packages" if steps.debian_python else ""
    yield f"    /usr/bin/python3 -m venv --without-pip{words} {PREFIX}"
    wheels = [pin for pin in lock.python if pin.is_wheel]
    for prefix, mine in (
        (_MPI_PREFIX, [pin for pin in wheels if pin.layer == "mpi"]),
        (PREFIX, [pin for pin in wheels if pin.layer != "mpi"]),
    ):
        if mine:
            yield from _requirements(mine)
            yield f"    {_PIP} --only-binary=:all: --prefix={prefix} -r /tmp/requirements.txt"


def _requirements(pins: Iterable[PythonPin]) -> Iterator[str]:
    yield "    cat > /tmp/requirements.txt <<'END'"
    yield from (f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256}" for pin in sorted(pins))
    yield "END"


def _built_from_source(lock: Lock, steps: _Steps) -> Iterator[str]:
    for pin in lock.python:
        if pin.is_wheel:
            continue
        debs = [f"{deb.name}={deb.version}" for deb in lock.build_debs if deb.layer == pin.layer]
        yield ""
        yield f"    # {pin.name} {pin.version} has no wheel that fits: it is built from its source."
        if debs:
            yield f"    apt-get install -y --no-install-recommends {shlex.join(debs)}"
        yield "    mkdir -p /tmp/source"
        tools = [tool for tool in lock.build_python if tool.layer == pin.layer]
        if tools:
            yield from _requirements(tools)
            yield f"    {_PIP} --only-binary=:all: --target=/tmp/imports -r /tmp/requirements.txt"
        yield from _requirements([pin])
        command = _PIP.replace(" install ", " download ").replace(" --ignore-installed", "")
        command = command.replace("PYTHONPATH=", "PYTHONPATH=/tmp/imports:")
        yield (f"    {command} --no-binary=:all: --no-build-isolation -d {_ARCHIVE} -r /tmp/requirements.txt")
        archive = shlex.quote(f"{_ARCHIVE}/{pin.file}")
        yield f"    tar -xzf {archive} --strip-components=1 -C /tmp/source"
        for name, content in steps.patches.get(pin.layer, []):
            yield f"    base64 -d <<'END' | patch -d /tmp/source -p1 --batch --forward --fuzz=0  # {name}"
            yield from _wrapped(content)
            yield "END"
        variables = {"LD_LIBRARY_PATH": f"{_MPI_PREFIX}/lib", **steps.environments.get(pin.layer, {})}
        words = shlex.join(f"{name}={value}" for name, value in sorted(variables.items()))
        yield f"    env {words} PATH={PREFIX}/bin:{_MPI_PREFIX}/bin:/tmp/imports/bin:$PATH \\"
        yield "        PYTHONPATH=/tmp/imports:/usr/lib/python3/dist-packages \\"
        yield (
            f"        {PREFIX}/bin/python3 -m pip install --no-deps --no-index --no-build-isolation"
            f" --prefix={PREFIX} /tmp/source"
        )
        yield f"    rm -rf /tmp/source /tmp/imports {_ARCHIVE}"


def _contents(steps: _Steps) -> Iterator[str]:
    if not steps.files and not steps.links:
        return
    yield ""
    yield "    # Files and links of the image's own."
    for path, content, executable in steps.files:
        yield f"    mkdir -p {shlex.quote(str(PurePosixPath(path).parent))}"
        yield f"    base64 -d > {shlex.quote(path)} <<'END'"
        yield from _wrapped(content)
        yield "END"
        yield f"    chmod {'755' if executable else '644'} {shlex.quote(path)}"
    for path, target in sorted(steps.links.items()):
        yield f"    mkdir -p {shlex.quote(str(PurePosixPath(path).parent))}"
        yield f"    ln -sfn {shlex.quote(target)} {shlex.quote(path)}"


def _cleaning(lock: Lock) -> Iterator[str]:
    names = sorted(pin.name for pin in (*lock.base_debs, *lock.system_debs))
    yield ""
    yield "    # What is not in the lock goes: what was needed to make it, and what came with `From`."
    yield "    cat > /tmp/locked <<'END'"
    yield from names
    yield "END"
    yield "    export LC_ALL=C"
    yield "    dpkg-query -W -f '${Package}\\n' | sort | comm -13 /tmp/locked - > /tmp/others"
    yield "    xargs -r apt-get purge -y --allow-remove-essential < /tmp/others"
    yield "    rm -rf /var/lib/apt/lists/* /tmp/locked /tmp/others /tmp/requirements.txt"


def _wrapped(content: str) -> Iterator[str]:
    letters = re.sub(r"[^A-Za-z0-9+/=]", "", content)
    yield from (letters[at : at + 76] for at in range(0, len(letters), 76))


def _labels(manifest: Manifest) -> dict[str, str]:
    own = {
        "org.opencontainers.image.title": manifest.name,
        "org.opencontainers.image.version": manifest.version,
        "envbuild.lock": manifest.lock_digest,
    }
    return {**own, **manifest.labels}


def _steps(plan: str) -> _Steps:
    try:
        layers = json.loads(plan)["layers"]
        base = next(layer for layer in layers if layer["kind"] == "base")
        if not _SUITE.fullmatch(base["step"]["suite"]):
            raise ValueError("its base is of no suite")
        steps = _Steps(
            suite=base["step"]["suite"],
            debian_python=any(
                layer["step"].get("debian_python") is True for layer in layers if layer["kind"] == "venv"
            ),
        )
        for layer in layers:
            _add(layer, steps)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise RequestError(
            f"the image's plan cannot be read: {error}", hint="build the image again"
        ) from error
    return steps


def _add(layer: dict[str, Any], steps: _Steps) -> None:
    step = layer["step"]
    if layer["kind"] == "files" and layer["name"] != "metadata":
        steps.files.extend(
            (_one_line(entry["path"]), str(entry["content"]), entry["executable"] is True)
            for entry in step["files"]
        )
        steps.links.update({_one_line(path): _one_line(target) for path, target in step["links"].items()})
    if layer["kind"] == "source":
        name = str(layer["name"])
        steps.environments[name] = {
            _one_line(key): _one_line(value) for key, value in sorted(step["environment"].items())
        }
        steps.patches[name] = [(_one_line(entry["path"]), str(entry["content"])) for entry in step["patches"]]


def _one_line(text: object) -> str:
    """Return a text of one line; anything else could leave its line in the file."""
    if not isinstance(text, str) or not text.isprintable():
        raise ValueError(f"{text!r:.80} is no text of one line")
    return text
