"""Extend an image of ours: it becomes the image of its spec with what was asked for, from its own lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.build.run import BuildContext
from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.events import Emit, Warned, task
from envbuild.extend.packages import Addition
from envbuild.extend.python import PythonInstallation, files_and_directories, installed_distributions
from envbuild.image.compose import Provenance
from envbuild.image.environment import with_literals
from envbuild.image.extension import ExtensionNote, Requests
from envbuild.image.file import ImageFile
from envbuild.image.files import ImageFiles
from envbuild.image.metadata import packages_of, renewed_layer
from envbuild.image.model import MANIFEST_FORMAT, Manifest
from envbuild.image.sif import HINT_REBUILD
from envbuild.image.verify import check_image_is_whole
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
from envbuild.preflight.report import PreflightReport
from envbuild.resolve.files import FileCache
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.from_site import stack_facts
from envbuild.rules.judge import judge_each, refuse_or_warn
from envbuild.rules.rulebook import judge
from envbuild.spec.accelerators import owned_by_vendor
from envbuild.store.gc_roots import add_root
from envbuild.store.store import Store
from envbuild.workflows.gc_roots import root_of_build
from envbuild.workflows.inputs import read_recipe, sites_of
from envbuild.workflows.lock import tool_pins
from envbuild.workflows.make import ImageRequest, judge_image, make_image
from envbuild.workflows.settings import Settings

_MAX_TEXT_BYTES = 1 << 20
_BUILD_IT = "add it to its spec, and build that"
CONFLICT_HINT = "each path has one owner: ask for another package or target"
"""How to resolve a conflict with what an image has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """An image of ours, and what it carries."""

    image: ImageFile
    python: PythonInstallation
    """Its environment, with the distributions of the lock."""
    interpreter: Interpreter | None
    """Of its wheels; None if it has none."""


def read_own(image: ImageFile, files: ImageFiles, emit: Emit) -> OwnImage:
    """Read the data of an image of ours; all of it is compared with the manifest.

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
    installed = installed_distributions(files, search_path)
    return OwnImage(
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


def check_own(own: OwnImage, requests: Requests) -> None:
    """Check that an image of ours can take packages where they are wanted, and change those that may change.

    RequestError: it has no Python to choose packages for, or other layers are built from one of them.
    """
    if requests.executable not in ("", own.python.executable):
        problem = f"takes packages for {own.python.executable}, not for {requests.executable}"
        raise _refused(own.image, problem, hint="leave --python-executable out")
    if own.python.version.startswith("2."):
        raise _refused(own.image, f"has Python {own.python.version}, which takes no packages", hint=_BUILD_IT)
    if own.interpreter is None:
        raise _refused(own.image, "has no Python packages so far", hint=_BUILD_IT)
    pins = {pin.name: pin for pin in own.image.lock.python}
    used = {name for layer in own.image.plan.layers for name in layer.inputs}
    for pin in (pins[name] for name in requests.upgrade if name in pins):
        if pin.layer == "mpi" or not pin.is_wheel or f"wheel:{pin.name}" in used:
            problem = f"has {pin.name} {pin.version}, which is built from source, or what is built against it"
            raise _refused(own.image, problem, hint=_BUILD_IT)


def other_tools(own: OwnImage, settings: Settings) -> tuple[ToolPin, ...]:
    """Return the tools of this machine that make new layers and that the lock does not have; warn of each."""
    others = tuple(tool for tool in _tools_of(own) if tool not in own.image.lock.tools)
    for tool in others:
        text = f"the new layers are made by another {tool.name} ({tool.version}) than the image's"
        hint = "a build from the lock of the new image gives other bytes for the two"
        settings.emit(Warned(text=text, hint=hint))
    return others


def _tools_of(own: OwnImage) -> tuple[ToolPin, ...]:
    """Return the tools of this machine that decide the bytes of new layers."""
    return tool_pins(("installer", PACKERS[own.image.plan.layer("base").compression]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnExtension:
    """What an image of ours becomes."""

    lock: Lock
    manifest: Manifest
    """Without its file system."""
    plan: BuildPlan
    new: tuple[str, ...]
    """Names of the layers that it does not have yet."""
    hidden: tuple[str, ...]
    """Its paths that are not shown any more."""


def extend_own(
    own: OwnImage,
    files: ImageFiles,
    addition: Addition | None,
    requests: Requests,
    placed: Sequence[InlineFile],
    settings: Settings,
) -> OwnExtension:
    """Return lock, manifest and plan of an image of ours with what was requested.

    RequestError: what is locked then does not fit together, or the site.
    """
    pins = addition.pins if addition else ()
    lock = _extended_lock(own, pins, requests, settings)
    _judge(own, lock, files, settings)
    known = own.image.manifest.python_packages
    modules = {package.name: package.modules for package in known if package.modules is not None}
    manifest = own.image.manifest.model_copy(
        update={
            "environment": with_literals(own.image.manifest.environment, requests.environment),
            "format": MANIFEST_FORMAT,
            "lock_digest": sha256_of(dump(lock)),
            "python_packages": packages_of(lock, modules),
            "file_system": None,
        }
    )
    machine = _tools_of(own)
    added = {pin.name for pin in pins}
    wheels = [
        wheel_layer(pin, own.interpreter, machine, own.image.plan.layer("base"))
        for pin in lock.python
        if pin.name in added and own.interpreter is not None
    ]
    locked = {pin.name for pin in lock.python}
    dropped = [pin.name for pin in own.image.lock.python if pin.name not in locked]
    plan = extended_plan(
        own.image.plan,
        wheels=wheels,
        dropped=dropped,
        files=placed,
        metadata=renewed_layer(written_files(own.image.plan, "metadata"), lock, manifest),
        tools=machine,
    )
    new = {wheel.name for wheel in wheels} | {"metadata"} | ({"files"} if placed else set())
    installed = own.python.installed
    gone = [installed[name] for name in (*added, *dropped) if name in installed]
    return OwnExtension(
        lock=lock,
        manifest=manifest,
        plan=plan,
        new=tuple(name for name in plan.image if name in new),
        hidden=tuple(sorted(files_and_directories(files, gone, ENV_PREFIX))),
    )


def write_own(
    path: Path,
    own: OwnImage,
    extension: OwnExtension,
    note: ExtensionNote,
    settings: Settings,
    *,
    check: Callable[[], None],
) -> PreflightReport:
    """Build the new layers, and write the image of them and of those that the old image holds.

    An error of `check`, which is called when all is read, leaves `path` as it is.
    Returns what the new image would load, without the problems of the old one.
    """
    plan = extension.plan
    with settings.store.stage() as work:
        context = _context(own, extension, work, settings)
        make_image(
            path,
            ImageRequest(
                plan=plan,
                new=extension.new,
                provenance=Provenance(
                    manifest=extension.manifest,
                    lock=extension.lock,
                    plan=plan.to_json(),
                    note=note.to_json().encode(),
                ),
                bottom=own.image,
                hidden=extension.hidden,
                conflict_hint=CONFLICT_HINT,
            ),
            context.store,
            settings,
            context=context,
            check=check,
        )
    with ImageFile.open(path) as written:
        root = root_of_build(path, written.manifest, plan, extension.lock, path)
        add_root(settings.store, root.model_copy(update={"spec": ""}))
        return judge_image(written, settings, bottom=own.image)


def _extended_lock(own: OwnImage, pins: Sequence[PythonPin], requests: Requests, settings: Settings) -> Lock:
    """Return the lock with more pins, less those that nothing needs any more."""
    named = [
        f"{name}==={version}" for name, version, *_ in (wheel.file.split("-") for wheel in requests.wheels)
    ]
    asked = (*own.image.lock.requests, *requests.python, *named)
    owners = dict(_owners(own.image.lock, settings))
    old = {pin.name: pin for pin in own.image.lock.python}
    now = old | {pin.name: replace(pin, layer=_owner(pin.name, own.image.lock, owners)) for pin in pins}
    for name, extras in _extras(asked).items():
        if name in now:
            wanted = own.python.installed[name].requires if name in own.python.installed else ()
            needed = {*now[name].requires, *_required(wanted, extras, own.python.markers)}
            now[name] = replace(now[name], requires=tuple(sorted(needed & now.keys())))
    lock = replace(own.image.lock, requests=tuple(set(asked)), python=tuple(now.values()))
    wanted_names = [canonicalize_name(Requirement(text).name) for text in lock.requests]
    kept = lock.needed_by(wanted_names) | (old.keys() - own.image.lock.needed_by(wanted_names))
    return replace(lock, python=tuple(pin for pin in lock.python if pin.name in kept))


def _extras(requests: Iterable[str]) -> dict[str, set[str]]:
    extras: dict[str, set[str]] = {}
    for wanted in map(Requirement, requests):
        if wanted.extras:
            extras.setdefault(canonicalize_name(wanted.name), set()).update(wanted.extras)
    return extras


def _required(texts: Iterable[str], extras: Iterable[str], markers: Mapping[str, str]) -> Iterator[str]:
    """Yield the distributions that extras of an installed one ask for."""
    for text in texts:
        with suppress(InvalidRequirement, UndefinedEnvironmentName, UndefinedComparison):
            wanted = Requirement(text)
            if wanted.marker and any(wanted.marker.evaluate({**markers, "extra": extra}) for extra in extras):
                yield canonicalize_name(wanted.name)


def _owners(lock: Lock, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield distributions with the layers that own them, as far as the recipes of a lock are here."""
    for pin in lock.recipes:
        with suppress(EnvbuildError):
            recipe = read_recipe(pin.name, recipes=settings.recipes).loaded.value
            layer = "mpi" if pin.kind == "mpi" else f"framework:{pin.name}"
            yield from ((name, layer) for name in recipe.owns)


def _owner(name: str, lock: Lock, owners: Mapping[str, str]) -> str:
    vendor = owned_by_vendor(name, lock.accelerator.partition("@")[0])
    return owners.get(name) or ("accelerator" if vendor else "python")


def _judge(own: OwnImage, lock: Lock, files: ImageFiles, settings: Settings) -> None:
    """Refuse a lock that does not fit together, or the site."""
    settings_text = files.read(f"{ENV_PREFIX}/pyvenv.cfg", _MAX_TEXT_BYTES) or ""
    sees_debian = "include-system-site-packages = true" in settings_text
    theirs = {pin.name: pin.version for pin in lock.system_debs if sees_debian}
    before = {pin.name for pin in own.image.lock.python}
    for pin in lock.python:
        if (package := f"python3-{pin.name}") in theirs and pin.name not in before:
            raise RequestError(
                f"{pin.name} {pin.version} would hide Debian's {package} {theirs[package]}",
                at=Location(path=own.image.path),
                hint=f"leave `{pin.name}` out: Debian's is there to import",
            )
    sites = sites_of(settings) or (None,)
    old, new = (
        judge_each({site.name if site else "": judge(stack_facts(facts, site)) for site in sites})
        for facts in map(facts_of_lock, (own.image.lock, lock))
    )
    # What does not fit in the old image either is not the fault of what is added.
    known = {verdict.rule for verdict in old if verdict.outcome == "incompatible"}
    refuse_or_warn([verdict for verdict in new if verdict.rule not in known], settings.emit)


def _context(own: OwnImage, extension: OwnExtension, work: Path, settings: Settings) -> BuildContext:
    """Return what building the new layers needs.

    Without its base, wheels are compiled by the Python of the image. That may be a stranger's, so what it
    makes is not for other images: the layers are then in a store below `work`.
    """
    has_base = settings.store.get(extension.plan.layer("base").key) is not None
    cache = FileCache(settings.store.directory("files"))
    by_digest = {pin.sha256: pin for pin in extension.lock.python}
    return BuildContext(
        store=settings.store if has_base else Store(work / "store"),
        apptainer=settings.find_apptainer(),
        locate=lambda file: settings.store.for_programs(cache.path(by_digest[file.sha256]), work),
        emit=settings.emit,
        image=None if has_base else own.image.program_path,
        logs=settings.store.directory("logs"),
    )


def _refused(image: ImageFile, problem: str, *, hint: str) -> RequestError:
    return RequestError(f"`{image.path.name}` {problem}", at=Location(path=image.path), hint=hint)
