"""Facts of what was locked: the builds that were chosen, not those that were asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envbuild.compat.derive import derived
from envbuild.compat.facts import Facts, make_facts

LOCK = "lock"

# Framework → its distribution, where the names differ.
_DISTRIBUTIONS = {"pytorch": "torch"}
_CUDA_RUNTIME = re.compile(r"nvidia-cuda-runtime(-cu[0-9]+)?")
_OF_A_MAJOR = re.compile(r"(?:nvidia|cupy|cuda)-.*-cu([0-9]{2})")
# Those without a major in their name whose own version is CUDA's.
_OF_CUDA = re.compile(r"nvidia-cuda-(runtime|nvrtc|cupti|nvcc)|cuda-toolkit|cuda-bindings")
# Framework → the distributions that make its wheel one for CUDA.
_BRINGS_CUDA = {
    "pytorch": re.compile(r"nvidia-.*|cuda-toolkit"),
    "tensorflow": _CUDA_RUNTIME,
    "jax": re.compile(r"jax-cuda[0-9]+-plugin"),
}
_JAX = re.compile(r"jax|jaxlib|jax-(cuda|rocm)[0-9]+-(plugin|pjrt)")


class Pin(Protocol):
    """A Python distribution or Debian package of a lock."""

    @property
    def name(self) -> str:
        """Its canonical name."""

    @property
    def version(self) -> str:
        """Its version, with its local part."""


class WheelPin(Pin, Protocol):
    """A Python distribution of a lock."""

    @property
    def requires(self) -> tuple[str, ...]:
        """Names of the locked distributions that it asked for."""


class RecipePin(Pin, Protocol):
    """A recipe of a lock."""

    @property
    def kind(self) -> str:
        """``mpi`` or ``framework``."""


class BasePin(Protocol):
    """The base image of a lock."""

    @property
    def architecture(self) -> str:
        """In Debian's words."""

    @property
    def python(self) -> str:
        """``3.11``."""

    @property
    def abi(self) -> str:
        """``cp311``."""

    @property
    def glibc(self) -> str:
        """``2.36``."""


class Locked(Protocol):
    """What of a lock this room looks at: `envbuild.lock.model.Lock` has it."""

    @property
    def accelerator(self) -> str:
        """As in the spec (``cuda==13.0.*``)."""

    @property
    def base(self) -> BasePin:
        """The base image."""

    @property
    def recipes(self) -> Sequence[RecipePin]:
        """The recipes."""

    @property
    def base_debs(self) -> Sequence[Pin]:
        """Debian packages of the base."""

    @property
    def system_debs(self) -> Sequence[Pin]:
        """Debian packages beyond it."""

    @property
    def python(self) -> Sequence[WheelPin]:
        """Python distributions."""


def facts_of_lock(lock: Locked) -> Facts:
    """Return what a lock says of the image that is made from it, with what tables know of that.

    Programs are taken to run on the image's own MPI; `envbuild.compat.derive.on_host_mpi`
    gives the facts for the host's.
    """
    pins = {pin.name: pin for pin in lock.python}
    versions = {name: pin.version for name, pin in pins.items()}
    debs = {pin.name: pin.version for pin in (*lock.base_debs, *lock.system_debs)}
    frameworks = {
        pin.name: _framework(pin, pins, _cuda_toolkit(versions))
        for pin in lock.recipes
        if pin.kind == "framework"
    }
    asked = lock.accelerator.partition("@")[0]
    # The libraries of a build for CUDA may be within its wheel.
    toolkits = [
        one["toolkit"] for one in frameworks.values() if one.get("accelerator") == "cuda" and "toolkit" in one
    ]
    toolkit = _cuda_toolkit(versions) or next(iter(sorted(toolkits)), None)
    # A spec for CPU whose lock has no CUDA is known to have none; otherwise what nobody names is unknown.
    nothing = "" if asked == "cpu" and toolkit is None else None
    values: dict[str, Any] = {
        "architecture.image": lock.base.architecture,
        "asked.accelerator": asked,
        "python.version": lock.base.python,
        "python.abi": lock.base.abi,
        "glibc.image": lock.base.glibc,
        "frameworks": frameworks,
        "cuda.toolkit": nothing if toolkit is None else toolkit,
        "cuda.majors": _cuda_majors(versions, toolkits),
        "cuda.forward_compat": any(name.startswith("cuda-compat") for name in debs),
        "nccl.version": _release(versions, r"nvidia-nccl(-cu[0-9]+)?") or nothing,
        "cudnn.built": _release(versions, r"nvidia-cudnn(-cu[0-9]+)?") or nothing,
        "jax.releases": _jax_releases(versions),
        "numpy.version": versions.get("numpy"),
        **_mpi(lock, debs),
    }
    known = {path: value for path, value in values.items() if value is not None}
    return derived(make_facts(known, dict.fromkeys(known, LOCK)))


def _framework(recipe: RecipePin, pins: Mapping[str, WheelPin], toolkit: str | None) -> dict[str, str]:
    pin = pins.get(_DISTRIBUTIONS.get(recipe.name, recipe.name))
    local = pin.version.partition("+")[2] if pin is not None else ""
    build = _build_of(local) if local else _build_of_wheels(recipe.name, pin, pins, toolkit)
    return {"version": recipe.version, **build}


def _build_of(local: str) -> dict[str, str]:
    """Read a local version: ``cpu``, ``cu130``, ``rocm6.4``; empty for another."""
    if local == "cpu":
        return {"accelerator": "cpu"}
    if cuda := re.fullmatch(r"cu([0-9]{2})([0-9])", local):
        return {"accelerator": "cuda", "toolkit": f"{cuda[1]}.{cuda[2]}"}
    rocm = re.fullmatch(r"rocm([0-9.]+)", local)
    return {"accelerator": "rocm", "toolkit": rocm[1]} if rocm else {}


def _build_of_wheels(
    name: str, pin: WheelPin | None, pins: Mapping[str, WheelPin], toolkit: str | None
) -> dict[str, str]:
    """Tell a build by the distributions that are locked beside it."""
    if name == "tensorflow" and "tensorflow-cpu" in pins:
        return {"accelerator": "cpu"}
    if pin is None or name not in _BRINGS_CUDA:
        return {}
    if any(_BRINGS_CUDA[name].fullmatch(one) for one in _with_plugins(pin, pins)):
        return {"accelerator": "cuda"} | ({"toolkit": toolkit} if toolkit else {})
    if any(re.fullmatch(r"jax-rocm[0-9]+-plugin", one) for one in pins):
        return {"accelerator": "rocm"}
    # The same wheel without CUDA's libraries beside it runs on the CPU, and says so to nobody.
    return {"accelerator": "cpu"}


def _with_plugins(pin: WheelPin, pins: Mapping[str, WheelPin]) -> set[str]:
    """Return what a framework would load: PyTorch what it asks for, the others whatever is there."""
    if pin.name != "torch":
        return set(pins)
    found: set[str] = set()
    new = {pin.name}
    while new:
        found |= new
        new = {one for each in new if each in pins for one in pins[each].requires} - found
    return found


def _cuda_toolkit(versions: Mapping[str, str]) -> str | None:
    """Return the release of the newest CUDA run-time library: ``13.0`` of ``13.0.96``."""
    found = [version for name, version in versions.items() if _CUDA_RUNTIME.fullmatch(name)]
    releases = [tuple(map(int, match.groups())) for one in found if (match := re.match(r"(\d+)\.(\d+)", one))]
    return ".".join(map(str, max(releases))) if releases else None


def _cuda_majors(versions: Mapping[str, str], toolkits: Sequence[str]) -> tuple[str, ...]:
    majors = {toolkit.partition(".")[0] for toolkit in toolkits}
    for name, version in versions.items():
        named = _OF_A_MAJOR.fullmatch(name)
        if named:
            majors.add(named[1])
        elif _OF_CUDA.fullmatch(name):
            majors.add(version.partition(".")[0])
    return tuple(sorted(majors))


def _release(versions: Mapping[str, str], name: str) -> str | None:
    found = [version for one, version in sorted(versions.items()) if re.fullmatch(name, one)]
    return found[0] if found else None


def _jax_releases(versions: Mapping[str, str]) -> tuple[str, ...]:
    found = {version.partition("+")[0] for name, version in versions.items() if _JAX.fullmatch(name)}
    return tuple(sorted(found))


def _mpi(lock: Locked, debs: Mapping[str, str]) -> dict[str, str | None]:
    recipe = next((pin for pin in lock.recipes if pin.kind == "mpi"), None)
    if recipe is None:
        return {}
    family, version = recipe.name, recipe.version
    if family == "openmpi-debian":
        # The base decides which: the recipe's own version is not the library's.
        packages = (text for name, text in sorted(debs.items()) if re.fullmatch(r"libopenmpi[0-9]+.*", name))
        family, version = "openmpi", next(packages, "").partition("-")[0]
    return {"mpi.family": family, "mpi.version": version or None, "mpi.source": "image"}
