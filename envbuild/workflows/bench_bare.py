"""The wheels of an image in a virtual environment on the host, with which `bench --bare` compares it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.build.workdir import traversable_directory
from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, some
from envbuild.events import task
from envbuild.image.file import ImageFile
from envbuild.launch.bare import BareEnvironment
from envbuild.launch.start import results_directory
from envbuild.lock.model import Lock
from envbuild.resolve.uv import install_wheels
from envbuild.system import host, process
from envbuild.workflows.fetch import fetch_pins
from envbuild.workflows.reproduce import origins_of_image
from envbuild.workflows.settings import Settings

_PROBE = (
    "import json, platform, sys; v = sys.version_info;"
    " print(json.dumps([platform.python_version(), f'cp{v[0]}{v[1]}' + getattr(sys, 'abiflags', '')"
    " if sys.implementation.name == 'cpython' else sys.implementation.name]))"
)
_PROBE_BYTES = 4096
_LIMIT_S = 1800.0


@contextmanager
def bare_environment(
    image: ImageFile, python: Path, settings: Settings, *, spans_nodes: bool
) -> Iterator[BareEnvironment]:
    """Make a virtual environment of a host's Python with the wheels of an image; it is removed at the end.

    If ranks may be on other nodes, it is in the working directory, else in the directory for temporary files.
    RequestError: the Python is not of the image's version, or not all of the image comes from wheels.
    MachineError: the environment cannot be made.
    """
    lock = image.lock
    _check_wheels(image, lock)
    version = _check_python(python, lock)
    pins = [pin for pin in lock.python if pin.is_wheel]
    parent = results_directory(Path.cwd()) if spans_nodes else traversable_directory()
    with parent as work, settings.store.in_use():
        origins = origins_of_image(image, settings)
        cache = fetch_pins(pins, origins, settings, sources=(), offline=False)
        directory = work / "environment"
        with task(settings.emit, "bench:bare", f"install {len(pins)} wheels for {python}"):
            _made(
                process.run(
                    [python, "-m", "venv", "--without-pip", directory],
                    env=host.environment(),
                    timeout_s=_LIMIT_S,
                ),
                python,
            )
            wheels = [settings.store.for_programs(cache.path(pin), work) for pin in pins]
            _made(install_wheels(directory / "bin/python", wheels, timeout_s=_LIMIT_S), python)
        yield BareEnvironment(directory=directory, version=version)


def _made(done: process.Finished, python: Path) -> None:
    """Raise a MachineError if a step did not succeed."""
    if not done.ok:
        raise MachineError(
            f"--bare: no environment of `{python}` can be made: {done.how_it_failed}\n{done.last_lines(8)}",
            hint=f"repeat it: {done.command}",
        )


def _check_wheels(image: ImageFile, lock: Lock) -> None:
    """Raise a RequestError if a part of an image has no wheels that a host could install."""
    built = [pin.name for pin in lock.python if not pin.is_wheel]
    layers = {pin.layer for pin in lock.python}
    packaged = [
        pin.name
        for pin in lock.recipes
        if pin.kind in ("fabric", "site") or not layers & {f"{pin.kind}:{pin.name}", pin.kind}
    ]
    if built or packaged:
        why = (
            f"{some(built)} is built from source" if built else f"{some(packaged)} comes from Debian packages"
        )
        raise RequestError(
            f"--bare compares an image of wheels, and in `{image.path.name}` {why}",
            at=Location(path=image.path),
            hint="leave --bare out, or compare two images: `envbuild bench A.sif B.sif`",
        )


def _check_python(python: Path, lock: Lock) -> str:
    """Return the version of a Python; RequestError unless it is one that the wheels of a lock are for."""
    try:
        done = process.run(
            [python, "-I", "-c", _PROBE],
            env=host.environment(),
            timeout_s=60,
            stdout_bytes=_PROBE_BYTES,
        )
        version, abi = map(str, json.loads(done.stdout))
    except (EnvbuildError, ValueError) as error:
        hint = "--bare takes the path of a Python of this machine, such as /usr/bin/python3"
        raise RequestError(f"`{python}` is not a Python that starts here", hint=hint) from error
    if abi != lock.base.abi:
        raise RequestError(
            f"`{python}` is Python {version} ({abi}), and the wheels of the image are for {lock.base.abi}",
            hint=f"name a Python {lock.base.python}: `--bare /usr/bin/python{lock.base.python}`",
        )
    return version
