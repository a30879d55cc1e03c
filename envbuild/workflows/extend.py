"""Extend: put packages, files and variables on a finished image of any tool."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement

from envbuild.build.run import BuildContext
from envbuild.build.sandbox import Sandbox
from envbuild.errors import Location, RequestError, pluralize, raise_all
from envbuild.events import Note, Warned, task
from envbuild.extend.built import (
    BuiltImage,
    check_takes_packages,
    extended_plan_of,
    other_tools,
    read_built,
    request_over,
)
from envbuild.extend.files import check_locales, check_placed, described_files, placed_files
from envbuild.extend.judge import judge_addition, packages_for_cuda
from envbuild.extend.layers import request_on
from envbuild.extend.packages import (
    Addition,
    PackageRequest,
    fetch_packages,
    resolve_packages,
)
from envbuild.extend.python import PythonInstallation, choose_python, find_pythons, probe_python
from envbuild.extend.request import (
    CheckedRequest,
    ExtendRequest,
    check_request,
    derived_path,
    extension_of,
    package_changes,
)
from envbuild.image.compose import check_target
from envbuild.image.extension import (
    Extension,
    ExtensionNote,
    Requests,
    note_with,
)
from envbuild.image.file import ImageFile, is_image
from envbuild.image.request import ImageRequest
from envbuild.image.runnable import identity_of
from envbuild.lock.model import PythonPin
from envbuild.preflight.report import PreflightReport
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import read_machine
from envbuild.store.gc_roots import add_root
from envbuild.store.store import Store
from envbuild.system.files import is_below
from envbuild.system.process import thread_pool
from envbuild.workflows.activity import log_activity
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.failures import explain_failure
from envbuild.workflows.gc_roots import root_of_build
from envbuild.workflows.inputs import site_here, sites_of
from envbuild.workflows.make import Made, judge_image, make_image
from envbuild.workflows.settings import Settings

__all__ = ["ExtendRequest", "Extended", "extend_image", "show_extensions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """An image that was extended, or would be."""

    path: Path
    size_bytes: int
    """Length of the file; 0 of a dry run."""
    note: ExtensionNote
    """All that was added."""
    written: bool
    preflight: PreflightReport | None = None
    """Libraries that the image would load, without the problems of the old one; the file is written whatever
    it shows. None if nothing was written, or no packages were added to an image of another tool."""
    changes: tuple[str, ...] = ()
    """Sentences on what differs from the image that it was made like."""
    taken_over: Requests | None = None
    """Requests of that image that were made again; None without one."""

    @property
    def extension(self) -> Extension:
        """What was added now."""
        return self.note.extensions[-1]


def show_extensions(path: Path) -> ExtensionNote | None:
    """Return what was added to an image, None if nothing was; RequestError if it is not an image."""
    with ImageFile.open(path) as image:
        return image.note


def extend_image(request: ExtendRequest, settings: Settings) -> Extended:
    """Write a new image: an old one, whose data is copied as it is, and what was requested."""
    with contextlib.ExitStack() as opened:
        image = opened.enter_context(ImageFile.open(request.image))
        like = opened.enter_context(ImageFile.open(request.like)) if request.like is not None else None
        return _extend(image, like, request, settings)


def _extend(image: ImageFile, like: ImageFile | None, request: ExtendRequest, settings: Settings) -> Extended:
    """Extend an image; a change of an image that is read meanwhile leaves no new one."""
    image.check_extensible()
    checked = check_request(request, like)
    for remark in checked.packages.remarks:
        settings.emit(Warned(text=remark))
    check_locales(checked, image)
    path = _check_output(request, checked, settings)
    with settings.store.in_use(), settings.store.stage() as stage:
        placed = placed_files(checked, image)
        built = read_built(image, settings.emit) if image.built_by_envbuild else None
        addition, identity = _choose(image, built, checked, request, settings, stage)
        tools = other_tools(built, settings.emit) if built is not None else ()
        extension = extension_of(image, checked, addition, tools)
        note = note_with(image.note, extension)
        _check_existing(path, extension)
        if built is not None:
            extended = extended_plan_of(
                built,
                addition,
                checked.requests,
                placed,
                recipes=settings.recipes,
                sites=sites_of(settings),
                emit=settings.emit,
            )
            check_placed(image, placed, extended.hidden, settings.emit)
            new: ImageRequest | None = request_over(built, extended, note)
            pins = extended.lock.python
        else:
            described = described_files(image, note)
            new = None if request.dry_run else request_on(image, addition, placed, described, identity)
            pins = addition.pins if addition is not None else ()
        result = Extended(
            path=path,
            size_bytes=0,
            note=note,
            written=False,
            changes=package_changes(like, extension) if like is not None else (),
            taken_over=checked.taken_over,
        )
        if request.dry_run or new is None:
            return result

        def check_all() -> None:
            for source in filter(None, (image, like)):
                source.check_unchanged()
            _check_existing(path, extension)  # another command may have written it meanwhile

        with settings.store.stage() as work:
            context = _context(new, pins, work, settings)
            made = make_image(path, new, context.store, settings, context=context, check=check_all)
        preflight = _examine_written(path, new, made, addition, settings)
    with ImageFile.open(path) as written:
        is_ours = written.built_by_envbuild
        label = written.label if is_ours else path.name
        digest = written.manifest.digest if is_ours else ""
    log_activity(settings.emit, "extend", name=label, digest=digest, result="written", path=path)
    if image.signatures:
        hint = "`apptainer sign` signs the new image"
        settings.emit(Warned(text="signatures of the old image do not hold for the new one", hint=hint))
    return replace(result, size_bytes=path.stat().st_size, written=True, preflight=preflight)


def _choose(
    image: ImageFile,
    built: BuiltImage | None,
    checked: CheckedRequest,
    request: ExtendRequest,
    settings: Settings,
    stage: Path,
) -> tuple[Addition | None, str]:
    """Choose the wheels that an image gains.

    Also returns the identity of an image of another tool, with which its layers are cached: the image is read
    as a whole while packages are chosen.
    """
    if checked.packages == PackageRequest():
        return None, ""
    with thread_pool(1) as reading:
        is_read = built is None and not request.dry_run
        identity = reading.submit(identity_of, image, settings.store) if is_read else None
        addition = _choose_packages(image, built, checked, request, settings, stage)
        return addition, identity.result() if identity is not None else ""


def _choose_packages(
    image: ImageFile,
    built: BuiltImage | None,
    checked: CheckedRequest,
    request: ExtendRequest,
    settings: Settings,
    stage: Path,
) -> Addition:
    """Choose the wheels that the image gains, and fetch them; refuse what would break it."""
    site = site_here(settings)
    with explain_failure("build", settings), settings.store.directory_for_programs("resolve") as cache_dir:
        if built is not None:
            check_takes_packages(built, checked.requests)
            python = built.python
        else:
            python = _find_python(image, checked.requests.executable, settings)
        packages = checked.packages
        if request.like is not None:  # the new image need not have all that could change in the old one
            packages = replace(packages, upgrade=packages.upgrade & python.installed.keys())
        if built is not None:
            packages = replace(packages, requirements=(*image.lock.requests, *packages.requirements))
        context = ResolveContext(
            machine=read_machine(),
            cache_dir=cache_dir,
            files=FileCache(settings.store.directory("files")),
            emit=settings.emit,
            offline=request.offline,
            directories=tuple(request.sources),
        )
        work = stage / "resolve"
        work.mkdir()
        with task(settings.emit, "resolve", "resolve Python packages") as running:
            addition = resolve_packages(
                python, packages, image=image.path, site=site, context=context, stage=work
            )
            running.detail = pluralize(len(addition.pins), "wheel")
        judgement = judge_addition(addition, image.files, at=image.path, emit=settings.emit)
        raise_all(judgement.errors)
        for text in judgement.warnings:
            settings.emit(Warned(text=text))
        cuda = packages_for_cuda(addition)
        if built is not None and image.manifest.accelerator == "cpu" and cuda:
            text = f"{cuda[0]} is for CUDA, and the image for CPUs: `envbuild test` uses no GPU"
            settings.emit(Warned(text=text, hint="build an image with `accelerator: cuda` in its spec"))
        if not request.dry_run:
            fetch_packages(addition, packages, image=image.path, site=site, context=context)
    requested = (text for text in checked.requests.python if not Requirement(text).extras)
    for text in sorted(set(addition.present).intersection(requested)):
        settings.emit(Note(text=f"the image already satisfies `{text}`"))
    return addition


def _find_python(image: ImageFile, named: str, settings: Settings) -> PythonInstallation:
    """Return the Python of an image of another tool: the named one, that of earlier runs, or that on PATH."""
    executable = named or (image.note.python if image.note is not None else "")
    sandbox = Sandbox(apptainer=settings.find_apptainer(), root=image.program_path)
    chosen = choose_python(image.files, executable or None, image.path, sandbox.search_path)
    if not executable and len(find_pythons(image.files)) > 1:
        text = f"packages are added to `{chosen}`, the Python on the image's PATH"
        settings.emit(Note(text=f"{text}; `--python-executable PATH` names another"))
    log = settings.store.directory("logs") / "extend.log"
    return probe_python(image.files, chosen, sandbox=sandbox, log=log, at=image.path)


def _context(
    request: ImageRequest, pins: Sequence[PythonPin], work: Path, settings: Settings
) -> BuildContext:
    """Return what building the new layers needs; `pins` are the files of their wheels.

    Without the base of an image that envbuild built, wheels are compiled by the Python of the image. That may
    be a stranger's, so what it makes is not for other images: the layers are then in a store below `work`.
    Layers for an image of another tool are cached by its identity.
    """
    bottom, store = request.bottom, settings.store
    program_path = bottom.program_path if bottom is not None else None
    if bottom is not None and bottom.built_by_envbuild:
        has_base = store.get(request.plan.layer("base").key) is not None
        program_path = None if has_base else program_path
        store = store if has_base else Store(work / "store")
    cache = FileCache(settings.store.directory("files"))
    by_digest = {pin.sha256: pin for pin in pins}
    return BuildContext(
        store=store,
        apptainer=settings.find_apptainer() if pins else None,
        locate=lambda file: settings.store.for_programs(cache.path(by_digest[file.sha256]), work),
        emit=settings.emit,
        image=program_path,
        logs=settings.store.directory("logs"),
    )


def _examine_written(
    path: Path, request: ImageRequest, made: Made, addition: Addition | None, settings: Settings
) -> PreflightReport | None:
    """Return what a new image would load, without the problems of the old one; keep its layers in the store.

    None if no packages were added to an image of another tool.
    """
    with ImageFile.open(path) as written:
        if request.provenance is not None:
            root = root_of_build(path, written.manifest, request.plan, request.provenance.lock, path)
            add_root(settings.store, root.model_copy(update={"spec": ""}))
            return judge_image(written, settings, made, bottom=request.bottom)
        if addition is None or not addition.pins:
            return None
        return judge_image(written, settings, made, bottom=request.bottom, python=addition.python)


def _check_output(request: ExtendRequest, checked: CheckedRequest, settings: Settings) -> Path:
    """Return the path of the new image; RequestError if it is an image in use here, or cannot be written."""
    path = request.output or derived_path(request.image, checked)
    if request.output is None and is_below(path, settings.store.path):
        path = Path(path.name)  # that of a registry lies there
    keep = (request.image,) if request.like is None else (request.image, request.like)
    check_target(path, keep=keep, is_one=is_image)
    check_outside_store(path, settings.store.path)
    return path


def _check_existing(path: Path, extension: Extension) -> None:
    """Refuse to replace an image, unless it is what the same request has made before."""
    if not path.exists():
        return
    with contextlib.suppress(RequestError), ImageFile.open(path) as existing:
        note = existing.note
        made = note.extensions[-1] if note else None
        if made and (made.digest, made.requests) == (extension.digest, extension.requests):
            return
    raise RequestError(
        f"`{path}` already exists and was made by another request",
        at=Location(path=path),
        hint="name another file with -o NEW.sif, or remove it",
    )
