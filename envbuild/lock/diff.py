"""Whether a lock still satisfies a spec: every constraint is met and every pin is needed. Pure.

A lock is judged by its contents, never by a hash of the spec: a widened constraint or a comment needs no
new lock. Lock and spec are for one architecture; `target_differences` compares the locks for two.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from envbuild.lock.model import BuildDebPin, DebPin, Lock, LockFile, PythonPin, RecipePin, RootPin, ToolPin
from envbuild.spec.base import BaseImage
from envbuild.spec.chosen_recipe import Build, ChosenRecipe
from envbuild.spec.model import SPEC_KEYS, EnvSpec
from envbuild.spec.python_request import PythonRequest
from envbuild.spec.requirements import RequirementEntry
from envbuild.spec.resolved import ResolvedSpec

# They write sources: what is compiled from these is not linked with them.
_TRANSLATORS = frozenset({"cffi", "cython", "mypy"})
# Code that is compiled with it runs on older releases, and on all of its major. Source: NumPy's manual, "For
# downstream package authors".
_NUMPY_FOR_OLDER = Version("1.25")


@dataclass(frozen=True, slots=True)
class LockDifference:
    """One difference between a lock and a spec."""

    scope: str
    """Scope to resolve again: ``python``, ``system``, ``base``, ``build``; or ``metadata`` for nothing."""
    sentence: str
    """For people, without a full stop: ``packages.python gained `tabulate```."""


def diff(lock: Lock, resolved: ResolvedSpec) -> tuple[LockDifference, ...]:
    """Return how a lock no longer satisfies a spec; empty if it does."""
    return (
        *_metadata(lock, resolved),
        *_recipes(lock, resolved.recipes, resolved.spec),
        *_python(lock, resolved),
        *_system(lock, resolved.system_requests, resolved.base),
        *_builds(lock, resolved.builds.values(), resolved.python),
    )


def tool_differences(lock: Lock, tools: Sequence[ToolPin]) -> tuple[LockDifference, ...]:
    """Return how the tools of a lock differ from this machine's; the lock still satisfies its spec.

    Other tools make other bytes, hence other layer keys, from the same packages.
    """
    locked = {pin.name: pin for pin in lock.tools}
    here = {pin.name: pin for pin in tools}
    differences = []
    for name in sorted(locked.keys() | here.keys()):
        was, now = locked.get(name), here.get(name)
        if was == now:
            continue
        if was is None:
            sentence = f"tool {name} is not in the lock"
        elif now is None:
            sentence = f"tool {name} {was.version} is in the lock and not on this machine"
        elif was.version != now.version:
            sentence = f"tool {name} is {now.version} here, the lock has {was.version}"
        else:
            sentence = f"tool {name} {now.version} is not the build in the lock"
        differences.append(LockDifference("metadata", sentence))
    return tuple(differences)


def is_compiled_against(pin: PythonPin) -> bool:
    """Return whether code that is built with a distribution fits that version of it alone."""
    if not pin.is_wheel or pin.name in _TRANSLATORS:
        return False
    return any(tag.abi != "none" for tag in parse_wheel_filename(pin.file)[3])


def other_versions(
    tools: Iterable[PythonPin], image: Iterable[PythonPin]
) -> Iterator[tuple[PythonPin, PythonPin]]:
    """Yield what builds compile against in a version that does not fit the image's, each with that."""
    pins = {pin.name: pin for pin in image}
    for tool in tools:
        pin = pins.get(tool.name)
        if pin is not None and pin.version != tool.version and is_compiled_against(tool):
            built, runs = Version(tool.version), Version(pin.version)
            if tool.name != "numpy" or built < _NUMPY_FOR_OLDER or built.major < runs.major:
                yield tool, pin


def package_changes(before: Lock, now: Lock) -> tuple[str, ...]:
    """Return a line for each package that differs, such as ``updated six 1.16 → 1.17``."""
    old, new = _packages(before), _packages(now)
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            lines.append(f"added {name} {new[name].version}")
        elif name not in new:
            lines.append(f"removed {name} {old[name].version}")
        elif old[name].version != new[name].version:
            lines.append(f"updated {name} {old[name].version} → {new[name].version}")
        elif old[name].sha256 != new[name].sha256:
            lines.append(f"updated {name} {new[name].version}: another file")
    return tuple(lines)


def target_differences(lock: Lock, other: Lock) -> tuple[str, ...]:
    """Return a line for each package whose version differs between the locks for two architectures.

    Debian packages that were only rebuilt for one of them (``+b1``) count as the same version.
    """
    # Files of finished roots have no versions that could be compared.
    here, there = (_packages(replace(entry, base_root=(), base_image=None)) for entry in (lock, other))
    lines = []
    for name in sorted(here.keys() | there.keys()):
        if name not in there:
            lines.append(f"{name} {here[name].version} is not in the target for {other.architecture}")
        elif name not in here:
            lines.append(f"{name} {there[name].version} is only in the target for {other.architecture}")
        elif _source_version(here[name]) != _source_version(there[name]):
            versions = f"{here[name].version}, the target for {other.architecture} has {there[name].version}"
            lines.append(f"{name} is {versions}")
    return tuple(lines)


def _source_version(pin: DebPin | PythonPin | RootPin) -> str:
    # Debian policy, 5.6.12: archives rebuild a package for one architecture under a version with `+bN`.
    return re.sub(r"\+b[0-9]+$", "", pin.version) if isinstance(pin, DebPin) else pin.version


def _packages(lock: Lock) -> dict[str, DebPin | PythonPin | RootPin]:
    of_image: tuple[DebPin | PythonPin | RootPin, ...]
    # Layers have no names; the digest of their image stands for them.
    roots = () if lock.base_image is not None else lock.base_root
    of_image = (*roots, *lock.base_debs, *lock.system_debs, *lock.python)
    of_builds: tuple[BuildDebPin | PythonPin, ...] = (*lock.build_debs, *lock.build_python)
    packages = {pin.name: pin for pin in of_image}
    packages |= {f"{pin.name} (to build {pin.layer.partition(':')[2]})": pin for pin in of_builds}
    return packages


def _metadata(lock: Lock, resolved: ResolvedSpec) -> Iterable[LockDifference]:
    spec, pin, base = resolved.spec, lock.base, resolved.base
    for key, was, now in (
        ("name", lock.name, spec.name),
        ("version", lock.version, spec.version),
        ("accelerator", lock.accelerator, str(spec.accelerator)),
    ):
        if was != now:
            yield LockDifference("metadata", f"{key} is `{now}`, the lock has `{was}`")
    image, here = lock.base_image, resolved.base_image
    if image is not None and here and image.image != str(spec.base):
        yield LockDifference("base", f"base is {spec.base}, the lock has {image.image}")
        return
    if image is not None and here and image.digest != here.rpartition("@")[2]:
        digests = f"{_short(here.rpartition('@')[2])}, the lock has {_short(image.digest)}"
        yield LockDifference("base", f"base {image.image} is {digests}")
        return
    if pin.name != base.name:
        yield LockDifference("base", f"base is {base.name}, the lock has {pin.name}")
        return
    if pin.digest != resolved.base_digest:
        yield LockDifference("base", f"base image {base.name} changed")
        return
    for fact, was, now in (
        ("Python", pin.python, base.python.version),
        ("the ABI tag", pin.abi, base.python.abi),
        ("glibc", pin.glibc, base.glibc),
    ):
        if was != now:
            yield LockDifference("metadata", f"base image {base.name} has {fact} {now}, the lock says {was}")


def _short(digest: str) -> str:
    return f"{digest[:19]}…"


def _recipes(lock: Lock, recipes: Sequence[ChosenRecipe], spec: EnvSpec) -> Iterable[LockDifference]:
    locked = {pin.name: pin for pin in lock.recipes}
    chosen = {entry.recipe.name: entry for entry in recipes}
    for name in sorted(chosen.keys() - locked.keys()):
        origin = SPEC_KEYS[chosen[name].recipe.kind]
        yield LockDifference("metadata", f"{origin} gained {name}")
    for name in sorted(locked.keys() - chosen.keys()):
        # Its dependencies may be orphaned now.
        yield LockDifference("python", f"{SPEC_KEYS[locked[name].kind]} lost {name}")
    for name in sorted(locked.keys() & chosen.keys()):
        sentence = _recipe_changed(locked[name], chosen[name], spec)
        if sentence:
            yield LockDifference("metadata", sentence)


def _recipe_changed(pin: RecipePin, chosen: ChosenRecipe, spec: EnvSpec) -> str | None:
    origin = SPEC_KEYS[pin.kind]
    if pin.version != chosen.version:
        choices = (spec.mpi, *spec.frameworks, *spec.fabric, *spec.from_site)
        choice = next((entry for entry in choices if entry is not None and entry.name == pin.name), None)
        if choice is not None and not choice.admits(pin.version):
            return f"{origin}: {pin.name} {pin.version} does not satisfy {choice.constraint}"
        return f"{origin}: {pin.name} {chosen.version} is chosen, the lock has {pin.version}"
    if pin.variant != chosen.variant_name:
        return f"{origin}: {pin.name} is for {chosen.variant_name}, the lock has it for {pin.variant}"
    if pin.digest != chosen.digest:
        return f"recipe {pin.name} changed"
    return None


def _python(lock: Lock, resolved: ResolvedSpec) -> Iterable[LockDifference]:
    """Return how the Python pins of a lock no longer satisfy a spec."""
    pins, request = {pin.name: pin for pin in lock.python}, resolved.python
    environment = request.target.environment
    requested = _by_name(request.requirements, environment)
    before = _by_name(_entries(lock.requests, request), environment)
    keys = _keys(request)
    for name, requirements in sorted(requested.items()):
        yield from _unmet(name, requirements, pins.get(name), before.get(name, []), keys[name])
    yield from _outside_files(pins, request)
    owners = {chosen.layer for chosen in resolved.recipes}
    yield from _orphans(lock, set(requested), set(before) - set(requested), owners)
    needed = lock.needed_by(requested)
    for pin in lock.python:
        if pin.is_wheel == (pin.name in request.built):
            how = "a wheel, and is to be built" if pin.is_wheel else "a source, and nothing builds it"
            yield LockDifference("python", f"`{pin.name}` is locked as {how}")
        owner = resolved.owner(pin.name)
        if pin.layer != owner and pin.name in needed:
            sentence = f"`{pin.name}` belongs to layer {owner}, the lock has it in {pin.layer}"
            yield LockDifference("metadata", sentence)


def _entries(texts: Iterable[str], request: PythonRequest) -> Iterator[RequirementEntry]:
    """Parse requirements that no file of the spec writes."""
    at = request.location_of()
    return (RequirementEntry(text=text, at=at) for text in texts)


def _by_name(
    entries: Iterable[RequirementEntry], environment: dict[str, str]
) -> dict[str, list[Requirement]]:
    """Group requirements by canonical name; those whose marker is false here are dropped."""
    grouped: dict[str, list[Requirement]] = {}
    for entry in entries:
        if entry.applies(environment):
            grouped.setdefault(entry.name, []).append(entry.requirement)
    return grouped


def _unmet(
    name: str,
    requirements: Sequence[Requirement],
    pin: PythonPin | None,
    before: Sequence[Requirement],
    origin: str,
) -> Iterable[LockDifference]:
    if pin is None:
        yield LockDifference("python", f"{origin} gained `{name}`")
        return
    for requirement in requirements:
        if not requirement.specifier.contains(pin.version, prereleases=True):
            sentence = f"{origin}: {name} {pin.version} does not satisfy {requirement.specifier}"
            yield LockDifference("python", sentence)
    extras = {extra for requirement in requirements for extra in requirement.extras}
    had = {extra for requirement in before for extra in requirement.extras}
    for verb, changed in (("gained", extras - had), ("lost", had - extras)):
        for extra in sorted(changed):
            yield LockDifference("python", f"{origin}: `{name}` {verb} the extra `{extra}`")


def _outside_files(pins: Mapping[str, PythonPin], request: PythonRequest) -> Iterable[LockDifference]:
    """Yield pins that constraints or hashes of files with requirements exclude."""
    environment = request.target.environment
    for name, constraints in sorted(_by_name(request.constraints, environment).items()):
        pin = pins.get(name)
        for bound in constraints:
            if pin is not None and not bound.specifier.contains(pin.version, prereleases=True):
                sentence = f"packages.python: {name} {pin.version} does not satisfy {bound.specifier}"
                yield LockDifference("python", sentence)
    for name, entry in sorted(request.commits.items()):
        repository, pin = entry.repository, pins.get(name)
        if repository and pin and not repository.admits(pin.origin, pin.version):
            sentence = f"packages.python: `{name}` is not locked from commit {repository.commit[:12]}"
            yield LockDifference("python", sentence)
    for name, hashes in sorted(request.hashes.items()):
        if name in pins and pins[name].sha256 not in hashes:
            sentence = f"packages.python: no hash of `{name}` is that of {pins[name].file}"
            yield LockDifference("python", sentence)


def _keys(request: PythonRequest) -> dict[str, str]:
    """Return where each distribution is requested: the spec's own key first, then the first recipe."""
    keys = {entry.name: "packages.python" for entry in request.written}
    for entry in request.of_recipes:
        keys.setdefault(entry.name, f"recipe {entry.recipe}")
    return keys


def _orphans(
    lock: Lock, requested: set[str], dropped: set[str], owners: set[str]
) -> Iterable[LockDifference]:
    """Yield pins that are no longer requested, without those that only they need."""
    kept = lock.needed_by(requested)
    layers = {pin.name: pin.layer for pin in lock.python}
    lost = sorted(name for name in dropped if name in layers and name not in kept)
    for name in lost:
        if layers[name] in ("python", *owners):  # otherwise the recipe is lost, which is a difference already
            yield LockDifference("python", f"packages.python lost `{name}`")
    explained = kept | lock.needed_by(lost)
    for pin in lock.python:
        if pin.name not in explained:
            yield LockDifference("python", f"`{pin.name}` is locked, and nothing asks for it")


def _system(lock: Lock, requests: Collection[str], base: BaseImage) -> Iterable[LockDifference]:
    pinned = {pin.name for pin in (*lock.base_debs, *lock.system_debs)}
    for name in sorted({*requests} - pinned):
        yield LockDifference("system", f"packages.system gained `{name}`")
    for name in sorted({*lock.system_requests} - {*requests}):
        yield LockDifference("system", f"packages.system lost `{name}`")
    if base.root is not None:
        return
    for name in sorted({*base.packages} - {pin.name for pin in lock.base_debs}):
        yield LockDifference("base", f"base image {base.name} needs `{name}`, which is not locked")


def _builds(lock: Lock, builds: Collection[Build], request: PythonRequest) -> Iterable[LockDifference]:
    """Yield build requirements that are not locked, and pins of builds that are gone."""
    in_base = {pin.name for pin in lock.base_debs}
    environment = request.target.environment
    locked_sources = {pin.name for pin in lock.python if not pin.is_wheel}
    for build in builds:
        debs = in_base | {pin.name for pin in lock.build_debs if pin.layer == build.layer}
        wheels = {pin.name for pin in lock.build_python if pin.layer == build.layer}
        lacking = [
            *(name for name in _by_name(_entries(build.python, request), environment) if name not in wheels),
            *(name for name in build.system if name not in debs),
        ]
        for name in lacking if build.distribution in locked_sources else ():
            sentence = f"the build of {build.name} needs `{name}`, which is not locked"
            yield LockDifference("build", sentence)
    for tool, pin in other_versions(lock.build_python, lock.python):
        text = f"is built against {tool.name} {tool.version}, and the image gets {pin.version}"
        yield LockDifference("build", f"{tool.layer.partition(':')[2]} {text}")
    layers = {build.layer for build in builds}
    locked = {pin.layer for pin in lock.build_debs} | {pin.layer for pin in lock.build_python}
    for layer in sorted(locked - layers):
        yield LockDifference("metadata", f"{layer} is no longer built, but the lock has its build tools")


def new_target_differences(previous: Lock | None, lock: Lock, others: Sequence[Lock]) -> Iterator[str]:
    """Yield how a lock differs from those for other architectures, and its previous state did not."""
    for other in others:
        known = target_differences(previous, other) if previous is not None else ()
        yield from (line for line in target_differences(lock, other) if line not in known)


def architectures(file: LockFile) -> str:
    """Return the architectures that a file has targets for, in words."""
    return " and ".join(sorted(file.targets))


def file_changes(file: LockFile | None, resolved: ResolvedSpec, pins: tuple[ToolPin, ...]) -> tuple[str, ...]:
    """Return how the lock beside a spec does not satisfy it, and how this machine's tools `pins` differ."""
    if file is None:
        return ("there was no lock",)
    previous = file.lock(resolved.architecture)
    if previous is None:
        return (f"there was no target for {resolved.architecture}, only for {architectures(file)}",)
    differences = (*diff(previous, resolved), *tool_differences(previous, pins))
    return tuple(difference.sentence for difference in differences)
