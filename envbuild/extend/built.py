"""Extends images that envbuild built: each becomes the image of its spec with what was requested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.events import Emit, Warned, task
from envbuild.extend.files import CONFLICT_HINT
from envbuild.extend.packages import Addition
from envbuild.extend.python import PythonInstallation, files_and_directories, installed_distributions
from envbuild.image.compose import Provenance
from envbuild.image.environment import with_literals
from envbuild.image.extension import ExtensionNote, Requests
from envbuild.image.file import ImageFile
from envbuild.image.metadata import packages_of, renewed_layer
from envbuild.image.model import MANIFEST_FORMAT, Manifest
from envbuild.image.request import ImageRequest
from envbuild.image.sif import HINT_REBUILD
from envbuild.image.verify import check_image_is_whole
from envbuild.inputs.catalog import read_recipe
from envbuild.inputs.knowledge import read_knowledge
from envbuild.inputs.tools import tool_pins
from envbuild.lock.model import Lock, PythonPin, ToolPin
from envbuild.lock.text import dump
from envbuild.plan.extended import extended_plan, written_files
from envbuild.plan.model import (
    ENV_PREFIX,
    MPI_PREFIX,
    PACKERS,
    BuildPlan,
    InlineFile,
    Interpreter,
    SourceStep,
    WheelStep,
)
from envbuild.plan.planner import wheel_layer
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import judge_each, refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.spec.accelerators import owned_by_vendor
from envbuild.spec.site import Site

_MAX_TEXT_BYTES = 1 << 20
_HINT_BUILD = "add it to its spec, and build that"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image that envbuild built, and its Python."""

    image: ImageFile
    python: PythonInstallation
    """Its environment, with the distributions of the lock."""
    interpreter: Interpreter | None
    """The interpreter of its wheels; None if it has none."""


def read_built(image: ImageFile, emit: Emit) -> BuiltImage:
    """Read the data of an image that envbuild built; all of it is compared with the manifest.

    RequestError: it was changed or damaged, or another version of envbuild made it.
    """
    with task(emit, "verify", f"read {image.path.name}", total_bytes=image.size_bytes) as reading:
        check_image_is_whole(image, advanced=reading.advance)
    lock, plan, system = image.lock, image.plan, image.manifest.file_system
    if [layer.name for layer in (system.layers if system else ())] != list(plan.image):
        raise _refused(image, "has other layers than its plan", hint=HINT_REBUILD)
    interpreters = (
        layer.step.interpreter for layer in plan.layers if isinstance(layer.step, WheelStep | SourceStep)
    )
    site = f"{ENV_PREFIX}/lib/python{lock.base.python}/site-packages"
    pins = {pin.name: pin.version for pin in lock.python}
    search_path = (site, site.replace(ENV_PREFIX, MPI_PREFIX))
    installed = installed_distributions(image.files, search_path)
    return BuiltImage(
        image=image,
        python=PythonInstallation(
            executable=f"{ENV_PREFIX}/bin/python",
            version=lock.base.python,
            abi=lock.base.abi,
            glibc=lock.base.glibc,
            architecture=lock.architecture,
            site_packages=site,
            scripts=f"{ENV_PREFIX}/bin",
            data=ENV_PREFIX,
            search_path=search_path,
            installed={name: package for name, package in installed.items() if name in pins},
        ),
        interpreter=next(interpreters, None),
    )


def check_takes_packages(built: BuiltImage, requests: Requests) -> None:
    """Check that packages can be added to an image, and that those to upgrade can change.

    RequestError: it has no Python to choose packages for, or other layers are built from one of them.
    """
    if requests.executable not in ("", built.python.executable):
        problem = f"takes packages for {built.python.executable}, not for {requests.executable}"
        raise _refused(built.image, problem, hint="leave --python-executable out")
    if built.python.version.startswith("2."):
        raise _refused(
            built.image, f"has Python {built.python.version}, which takes no packages", hint=_HINT_BUILD
        )
    if built.interpreter is None:
        raise _refused(built.image, "has no Python packages so far", hint=_HINT_BUILD)
    pins = {pin.name: pin for pin in built.image.lock.python}
    used = {name for layer in built.image.plan.layers for name in layer.inputs}
    for pin in (pins[name] for name in requests.upgrade if name in pins):
        if pin.layer == "mpi" or not pin.is_wheel or f"wheel:{pin.name}" in used:
            problem = f"has {pin.name} {pin.version}, which is built from source, or what is built against it"
            raise _refused(built.image, problem, hint=_HINT_BUILD)


def other_tools(built: BuiltImage, emit: Emit) -> tuple[ToolPin, ...]:
    """Return the tools of this machine that make new layers and that the lock does not have; warn of each."""
    others = tuple(tool for tool in _tools_of(built) if tool not in built.image.lock.tools)
    for tool in others:
        text = f"the new layers are made by another {tool.name} ({tool.version}) than the image's"
        hint = "a build from the lock of the new image gives other bytes for the two"
        emit(Warned(text=text, hint=hint))
    return others


def _tools_of(built: BuiltImage) -> tuple[ToolPin, ...]:
    """Return the tools of this machine that decide the bytes of new layers."""
    return tool_pins(("installer", PACKERS[built.image.plan.layer("base").compression]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedPlan:
    """Lock, manifest and plan of an image with what was requested."""

    lock: Lock
    manifest: Manifest
    """Without its file system."""
    plan: BuildPlan
    new: tuple[str, ...]
    """Names of the layers that it does not have yet."""
    hidden: tuple[str, ...]
    """Its paths that are not shown any more."""


def extended_plan_of(
    built: BuiltImage,
    addition: Addition | None,
    requests: Requests,
    placed: Sequence[InlineFile],
    *,
    recipes: Sequence[Path],
    sites: Sequence[Site],
    emit: Emit,
) -> ExtendedPlan:
    """Return what an image becomes with what was requested; recipes are searched in `recipes` first.

    RequestError: what is locked then does not fit together, or none of the `sites`.
    """
    pins = addition.pins if addition else ()
    lock = _extended_lock(built, pins, requests, recipes)
    _judge(built, lock, sites, emit)
    known = built.image.manifest.python_packages
    modules = {package.name: package.modules for package in known if package.modules is not None}
    manifest = built.image.manifest.model_copy(
        update={
            "environment": with_literals(built.image.manifest.environment, requests.environment),
            "format": MANIFEST_FORMAT,
            "lock_digest": sha256_of(dump(lock)),
            "python_packages": packages_of(lock, modules),
            "file_system": None,
        }
    )
    machine = _tools_of(built)
    added = {pin.name for pin in pins}
    wheels = [
        wheel_layer(pin, built.interpreter, machine, built.image.plan.layer("base"))
        for pin in lock.python
        if pin.name in added and built.interpreter is not None
    ]
    locked = {pin.name for pin in lock.python}
    dropped = [pin.name for pin in built.image.lock.python if pin.name not in locked]
    plan = extended_plan(
        built.image.plan,
        wheels=wheels,
        dropped=dropped,
        files=placed,
        metadata=renewed_layer(written_files(built.image.plan, "metadata"), lock, manifest),
        tools=machine,
    )
    new = {wheel.name for wheel in wheels} | {"metadata"} | ({"files"} if placed else set())
    installed = built.python.installed
    removed = [installed[name] for name in (*added, *dropped) if name in installed]
    return ExtendedPlan(
        lock=lock,
        manifest=manifest,
        plan=plan,
        new=tuple(name for name in plan.image if name in new),
        hidden=tuple(sorted(files_and_directories(built.image.files, removed, ENV_PREFIX))),
    )


def request_over(built: BuiltImage, extended: ExtendedPlan, note: ExtensionNote) -> ImageRequest:
    """Return the image that has the layers of a built one, and new ones over them."""
    return ImageRequest(
        plan=extended.plan,
        new=extended.new,
        provenance=Provenance(
            manifest=extended.manifest,
            lock=extended.lock,
            plan=extended.plan.to_json(),
            note=note.to_json().encode(),
        ),
        bottom=built.image,
        hidden=extended.hidden,
        conflict_hint=CONFLICT_HINT,
    )


def _extended_lock(
    built: BuiltImage, pins: Sequence[PythonPin], requests: Requests, recipes: Sequence[Path]
) -> Lock:
    """Return the lock with more pins, less those that nothing needs any more."""
    wheels = [
        f"{name}==={version}" for name, version, *_ in (wheel.file.split("-") for wheel in requests.wheels)
    ]
    requested = (*built.image.lock.requests, *requests.python, *wheels)
    owners = dict(_owners(built.image.lock, recipes))
    old = {pin.name: pin for pin in built.image.lock.python}
    now = old | {pin.name: replace(pin, layer=_owner(pin.name, built.image.lock, owners)) for pin in pins}
    for name, extras in _extras(requested).items():
        if name in now:
            declared = built.python.installed[name].requires if name in built.python.installed else ()
            needed = {*now[name].requires, *_required(declared, extras, built.python.markers)}
            now[name] = replace(now[name], requires=tuple(sorted(needed & now.keys())))
    lock = replace(built.image.lock, requests=tuple(set(requested)), python=tuple(now.values()))
    names = [canonicalize_name(Requirement(text).name) for text in lock.requests]
    kept = lock.needed_by(names) | (old.keys() - built.image.lock.needed_by(names))
    return replace(lock, python=tuple(pin for pin in lock.python if pin.name in kept))


def _extras(requests: Iterable[str]) -> dict[str, set[str]]:
    extras: dict[str, set[str]] = {}
    for requirement in map(Requirement, requests):
        if requirement.extras:
            extras.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
    return extras


def _required(texts: Iterable[str], extras: Iterable[str], markers: Mapping[str, str]) -> Iterator[str]:
    """Yield the distributions that extras of an installed one ask for."""
    for text in texts:
        with suppress(InvalidRequirement, UndefinedEnvironmentName, UndefinedComparison):
            requirement = Requirement(text)
            marker = requirement.marker
            if marker and any(marker.evaluate({**markers, "extra": extra}) for extra in extras):
                yield canonicalize_name(requirement.name)


def _owners(lock: Lock, recipes: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield distributions with the layers that own them, as far as the recipes of a lock are here."""
    for pin in lock.recipes:
        with suppress(EnvbuildError):
            recipe = read_recipe(pin.name, recipes=recipes).loaded.value
            layer = "mpi" if pin.kind == "mpi" else f"framework:{pin.name}"
            yield from ((name, layer) for name in recipe.owns)


def _owner(name: str, lock: Lock, owners: Mapping[str, str]) -> str:
    vendor = owned_by_vendor(name, lock.accelerator.partition("@")[0])
    return owners.get(name) or ("accelerator" if vendor else "python")


def _judge(built: BuiltImage, lock: Lock, sites: Sequence[Site], emit: Emit) -> None:
    """Refuse a lock whose parts do not fit together, or that fits none of the sites."""
    environment_text = built.image.files.read(f"{ENV_PREFIX}/pyvenv.cfg", _MAX_TEXT_BYTES) or ""
    sees_debian = "include-system-site-packages = true" in environment_text
    theirs = {pin.name: pin.version for pin in lock.system_debs if sees_debian}
    before = {pin.name for pin in built.image.lock.python}
    for pin in lock.python:
        if (package := f"python3-{pin.name}") in theirs and pin.name not in before:
            raise RequestError(
                f"{pin.name} {pin.version} would hide Debian's {package} {theirs[package]}",
                at=Location(path=built.image.path),
                hint=f"leave `{pin.name}` out: Debian's is there to import",
            )
    knowledge = read_knowledge()
    old, new = (
        judge_each(
            {
                site.name if site else "": judge(stack_facts(facts, site), knowledge=knowledge)
                for site in sites or (None,)
            }
        )
        for facts in map(facts_of_lock, (built.image.lock, lock))
    )
    # What does not fit in the old image either is not the fault of what is added.
    known = {verdict.rule for verdict in old if verdict.outcome == "incompatible"}
    refuse_or_warn([verdict for verdict in new if verdict.rule not in known], emit)


def _refused(image: ImageFile, problem: str, *, hint: str) -> RequestError:
    return RequestError(f"`{image.path.name}` {problem}", at=Location(path=image.path), hint=hint)
